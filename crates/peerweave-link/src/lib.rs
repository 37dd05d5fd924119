//! Compiles and links GPU kernels on the machine that runs them. NVRTC compiles CUDA C++, and
//! nvJitLink links all inputs to a cubin.
//!
//! NVRTC and nvJitLink are loaded when they are first used, and they need no GPU.
//! `peerweave-driver` loads and launches the linked modules.
//!
//! ```text
//!  Linker      links inputs of any kind to one cubin, or returns the cubin from the disk cache
//!   ├─ Source     CUDA C++ text with its headers and options
//!   ├─ Nvrtc      the compiler
//!   ├─ NvJitLink  the linker
//!   └─ Cache      cubins on disk, one file for each digest of all inputs
//!  nvshmem     wrappers of NVSHMEM's device functions, and the search for its headers and archive
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

/// Compile-time check: each type in this block is `Send` and `Sync`.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Nvrtc>();
    shared::<NvJitLink>();
    shared::<Cache>();
    shared::<Source>();
    shared::<Linker<'static>>();
};
