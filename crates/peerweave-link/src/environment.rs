//! The environment variables that this crate reads, besides the paths of NVRTC and nvJitLink: read
//! here and nowhere else.

use std::ffi::OsString;

/// The names of the variables.
pub mod names {
    /// Directory of the cache; `off` keeps nothing.
    pub const CACHE_DIR: &str = "PEERWEAVE_CACHE_DIR";
    /// Directories of CUDA's headers, as in `PATH`. If it is set, nothing else is tried.
    pub const CUDA_INCLUDE: &str = "PEERWEAVE_CUDA_INCLUDE";
    /// Directory that has `include` and `lib` of NVSHMEM's device library. If it is set, nothing
    /// else is tried.
    pub const NVSHMEM_DEVICE_PATH: &str = "PEERWEAVE_NVSHMEM_DEVICE_PATH";
}

/// The value of a variable of this process; an empty one counts as not set.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
