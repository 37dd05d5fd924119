//! Compiles and links GPU kernels on the machine that runs them, with NVRTC for CUDA C++ and
//! nvJitLink for all inputs of a cubin.
//!
//! Both libraries are loaded at their first use and need no GPU. `peerweave-driver` loads and
//! launches modules.
//!
//! ```text
//!  Linker      inputs of any kind -> one cubin, from the disk cache where nothing has changed
//!   ├─ Source     CUDA C++ text with its headers and options
//!   ├─ Nvrtc      the compiler
//!   ├─ NvJitLink  the linker
//!   └─ Cache      files keyed by all that decides the result
//!  nvshmem     wrappers of NVSHMEM's device functions, and where its headers and archive are
//! ```
#![doc = include_str!("../README.md")]

mod arch;
pub mod environment;
mod error;
mod linker;
pub mod nvshmem;
mod source;
mod toolkit;

pub use arch::{Arch, ParseArchError};
pub use error::LinkError;
pub use linker::{Cache, Key, Linked, Linker};
pub use peerweave_dylib::{LoadError, MissingSymbol, Version};
pub use source::{PEERWEAVE_CUH, Source, peerweave_cuh};
pub use toolkit::{Compiled, CudaHeaders, Input, InputKind, NvJitLink, Nvrtc, Target};

/// Checks at compile time that these types can be shared between threads.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Nvrtc>();
    shared::<NvJitLink>();
    shared::<Cache>();
    shared::<Source>();
    shared::<Linker<'static>>();
};
