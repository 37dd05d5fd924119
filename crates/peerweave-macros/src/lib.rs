//! `#[kernel]` and `#[derive(KernelArg)]`. `peerweave_device::prelude` exports them; their
//! documentation has examples there.

mod argument;
mod kernel;
mod shared;

use proc_macro::TokenStream;

/// Makes a kernel of a function.
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
/// The function stays as it is and can be called by other kernels. Beside it, a type of the same
/// name has a constant `KERNEL`, a `peerweave_device::launch::Kernel`, which a launch takes:
/// `stream.launch(&shift::KERNEL, 1, 1, (&dst,))`.
///
/// # What the function looks like
/// - Its first parameter may be `&Context`. All others are of types that implement `KernelArg`:
///   numbers, `SymSlice<T>`, `DeviceSlice<T>`, arrays, and structs with `#[derive(KernelArg)]`.
/// - For teams it takes a `KernelTeam`, for which a launch takes `&Team`.
/// - It returns nothing or `Result<(), Failed>`. A failure has been written to the context's status
///   already; the host's error names it.
/// - It is neither generic nor `async`, `const`, `unsafe` or `extern`. The names of kernels in a
///   crate differ: they are the names of the entries in the crate's PTX.
///
/// # PTX
/// Where the crate's build script calls `peerweave_build::kernels()`, `KERNEL` holds the crate's
/// PTX. Elsewhere it holds none, and runs on the host alone. `#[kernel(max_threads = 1024)]` bounds
/// the threads of a block, so that the assembler gives each thread few enough registers for that
/// many. Without it a kernel that needs many registers is refused at the launch where the block is
/// large.
#[proc_macro_attribute]
pub fn kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    kernel::expand(attribute.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Returns a declaration of shared memory its symbol: a step of `peerweave_device::shared_array!`.
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
