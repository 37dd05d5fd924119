//! `#[kernel]` and `#[derive(KernelArg)]`, which `peerweave_device::prelude` exports and documents
//! with examples, and `#[derive(Element)]`, which `peerweave` exports.

mod argument;
mod element;
mod kernel;
mod shared;

use proc_macro::TokenStream;

/// Makes a function a kernel.
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
/// The function is unchanged, so other kernels can call it. A type of the same name has a constant
/// `KERNEL` of type `peerweave_device::launch::Kernel`, which is passed to a launch:
/// `stream.launch(&shift::KERNEL, 1, 1, (&dst,))`.
///
/// # Requirements
/// - Its first parameter may be `&Context`. All other parameters have types that implement
///   `KernelArg`: numbers, `SymSlice<T>`, `DeviceSlice<T>`, arrays, and structs with
///   `#[derive(KernelArg)]`.
/// - A parameter of type `KernelTeam` is a team; the launch passes `&Team`.
/// - It returns nothing or `Result<(), Failed>`. A failure has already been written to the
///   context's status, and the host's error names it.
/// - `Context` is that of `peerweave_device`. `peerweave::Context`, which issues transfers on the
///   host, has the same name: in a file that uses both, write `peerweave_device::prelude::Context`
///   in the kernel, or import one as `use peerweave::Context as HostContext`. Two imports by `*`
///   make the name ambiguous.
/// - It is neither generic nor `async`, `const`, `unsafe` or `extern`. The kernels of a crate have
///   different names, which are the names of the entries in the crate's PTX.
///
/// # PTX
/// If the crate's build script calls `peerweave_build::kernels()`, `KERNEL` contains the crate's
/// PTX. Otherwise the kernel runs only on the host. `#[kernel(max_threads = 1024)]` bounds the
/// threads of a block, so that the assembler limits the registers of each thread accordingly.
/// Without it, a launch with a large block is refused if the kernel needs too many registers.
///
/// `#[kernel(unchecked)]` is for kernels that are shipped with the crate that launches them: the
/// entry does not compare the version of the context, which saves a load before the first
/// instruction.
///
/// Each kernel embeds the PTX of its crate, and the compiler keeps one copy for each module. Where
/// the PTX is large, a crate embeds it once, in a static of its own, by the file that the build
/// script writes. `ptx` is the path of that static:
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

/// Gives a declaration of shared memory its symbol. Part of `peerweave_device::shared_array!`.
#[doc(hidden)]
#[proc_macro]
pub fn name_shared_array(declaration: TokenStream) -> TokenStream {
    shared::expand(declaration.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Implements `KernelArg` for a `#[repr(C)]` or `#[repr(transparent)]` struct whose fields
/// implement it.
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
/// `#[repr(C)]` or `#[repr(transparent)]` struct whose fields are elements, without padding.
///
/// `#[element(reduce)]` also implements `Number`, if all fields have one type of values: reductions
/// combine them field by field.
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
