//! Compiles and links GPU kernels on the machine that runs them: NVRTC for CUDA C++, nvJitLink for everything that can become a cubin.
//!
//! Both libraries are loaded at their first use. Neither needs a GPU. Loading and launching modules is `peerweave-driver`'s.
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
mod cache;

mod cuh;
pub mod environment;
mod error;
mod fingerprint;
mod headers;
mod linker;
mod nvjitlink;
pub mod nvshmem;

mod nvrtc;
mod source;

pub use arch::{Arch, ParseArchError};
pub use cache::{Cache, Key};

pub use cuh::{PEERWEAVE_CUH, peerweave_cuh};
pub use error::LinkError;
pub use headers::CudaHeaders;
pub use linker::{InputKind, Linked, Linker};
pub use nvjitlink::{Input, NvJitLink};
pub use nvrtc::{Compiled, Nvrtc, Target};
pub use peerweave_dylib::Version;
pub use peerweave_dylib::{LoadError, MissingSymbol};
pub use source::Source;

/// Types that threads share: checked when the crate is compiled.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Nvrtc>();
    shared::<NvJitLink>();
    shared::<Cache>();
    shared::<Source>();
    shared::<Linker<'static>>();
};
