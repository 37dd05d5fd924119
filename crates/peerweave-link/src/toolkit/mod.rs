//! NVRTC, nvJitLink and the headers of the installed CUDA toolkit.

mod headers;
mod nvjitlink;
mod nvrtc;

pub use headers::CudaHeaders;
pub use nvjitlink::{Input, InputKind, NvJitLink};
pub use nvrtc::{Compiled, Nvrtc, Target};
