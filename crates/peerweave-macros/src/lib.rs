//! The macros `#[kernel]` and `#[derive(KernelArg)]`, which `peerweave_device::prelude` exports,
//! and `#[derive(Element)]`, which `peerweave` exports.

mod argument;
mod element;
mod kernel;
mod shared;

use proc_macro::TokenStream;

/// Makes a function a kernel. The kernel runs on the host. If its crate has PTX, the kernel also
/// runs on GPUs.
///
/// ```ignore
/// use peerweave_device::prelude::*;
///
/// #[kernel]
/// pub fn shift(ctx: &Context, dst: SymSlice<i32>) -> Result<(), Failed> {
///     let next = (ctx.my_pe() + 1) % ctx.n_pes();
///     ctx.p(dst.at(0), ctx.my_pe() as i32, next);
///     ctx.barrier_all()
/// }
/// ```
///
/// The function itself is unchanged, so other kernels can call it. The macro also generates a type
/// with the name of the function. The type has a constant `KERNEL` of type
/// `peerweave_device::launch::Kernel`, which a launch takes: `stream.launch(&shift::KERNEL, 1, 1,
/// (&dst,))`.
///
/// # Requirements
/// - The first parameter may be `&Context`. The types of all other parameters implement
///   `KernelArg`: numbers, `SymSlice<T>`, `DeviceSlice<T>`, arrays, and structs with
///   `#[derive(KernelArg)]`.
/// - For a parameter of type `KernelTeam`, the launch takes `&Team`.
/// - The function returns nothing or `Result<(), Failed>`. When the function returns `Failed`, the
///   failure has already been written to the context's status. The host's error contains the
///   failure.
/// - `Context` is `peerweave_device::prelude::Context`. The crate `peerweave` has a type of the
///   same name, which issues transfers on the host. In a file that uses both types, write the full
///   path of `Context` in the kernel, or `use peerweave::Context as HostContext`. If both crates
///   are imported by `*`, the name is ambiguous.
/// - The function is neither generic nor `async`, `const`, `unsafe` or `extern`. All kernels of a
///   crate have different names, because the name is also the name of the entry in the crate's PTX.
///
/// # PTX
/// If the crate's build script calls `peerweave_build::kernels()`, `KERNEL` contains the crate's
/// PTX. If not, the kernel runs only on the host. `#[kernel(max_threads = 1024)]` limits the number
/// of threads in a block. The assembler then limits the registers of each thread accordingly.
/// Without this limit, a launch with a large block fails if the kernel needs too many registers.
///
/// `#[kernel(unchecked)]` is for a kernel that only its own crate launches. The entry point of such
/// a kernel does not check the version of the context. So the kernel does not wait for the load of
/// the version.
///
/// Each kernel embeds the PTX of its crate, and the compiler generates one copy of this PTX for
/// each Rust module. If the PTX is large, a crate can embed the PTX once, in a static that includes
/// the file that the build script has written. The argument `ptx` is the path of that static:
///
/// ```ignore
/// #[cfg(not(target_arch = "nvptx64"))]
/// static PTX: peerweave_device::launch::PtxImage = include!(concat!(env!("OUT_DIR"), "/peerweave_ptx.rs"));
///
/// #[kernel(ptx = crate::PTX)]
/// pub fn shift(ctx: &Context, dst: SymSlice<i32>) -> Result<(), Failed> {
///     let next = (ctx.my_pe() + 1) % ctx.n_pes();
///     ctx.p(dst.at(0), ctx.my_pe() as i32, next);
///     ctx.barrier_all()
/// }
/// ```
#[proc_macro_attribute]
pub fn kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    kernel::expand(attribute.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Chooses a unique symbol for a declaration of shared memory, and adds the symbol to the
/// declaration. Only `peerweave_device::shared_array!` calls this macro.
#[doc(hidden)]
#[proc_macro]
pub fn name_shared_array(declaration: TokenStream) -> TokenStream {
    shared::expand(declaration.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Implements `KernelArg` for a `#[repr(C)]` or `#[repr(transparent)]` struct. All fields must
/// implement `KernelArg`.
///
/// ```ignore
/// use peerweave_device::prelude::*;
///
/// #[derive(Clone, Copy, KernelArg)]
/// #[repr(C)]
/// pub struct Buffers {
///     send: SymSlice<f32>,
///     recv: SymSlice<f32>,
///     rounds: u32,
/// }
/// ```
#[proc_macro_derive(KernelArg)]
pub fn kernel_arg(item: TokenStream) -> TokenStream {
    argument::expand(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Implements [`Element`](https://docs.rs/peerweave/latest/peerweave/trait.Element.html) for a
/// `#[repr(C)]` or `#[repr(transparent)]` struct. All fields must be elements, and the struct must
/// have no padding.
///
/// The attribute `#[element(reduce)]` also implements `Number`, so that reductions combine structs
/// field by field. With this attribute, the values of all fields must have the same type.
///
/// ```ignore
/// use peerweave::Element;
///
/// #[derive(Clone, Copy, PartialEq, Debug, Element)]
/// #[repr(C)]
/// struct Particle {
///     position: [f64; 3],
///     charge: f32,
///     kind: u32,
/// }
/// ```
#[proc_macro_derive(Element, attributes(element))]
pub fn element(item: TokenStream) -> TokenStream {
    element::expand(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
