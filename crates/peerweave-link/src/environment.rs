//! The environment variables that this crate reads, except the paths of NVRTC and nvJitLink. No
//! other module reads them.

use std::ffi::OsString;

/// The names of the variables.
pub mod names {
    /// Directory of the cache; `off` disables the cache.
    pub const CACHE_DIR: &str = "PEERWEAVE_CACHE_DIR";
    /// Directories of CUDA's headers, in the form of `PATH`. If set, no other place is searched.
    pub const CUDA_INCLUDE: &str = "PEERWEAVE_CUDA_INCLUDE";
    /// Directory that contains `include` and `lib` of NVSHMEM's device library. If set, no other
    /// place is searched.
    pub const NVSHMEM_DEVICE_PATH: &str = "PEERWEAVE_NVSHMEM_DEVICE_PATH";
}

/// Returns the value of a variable of this process; `None` if it is empty or not set.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
