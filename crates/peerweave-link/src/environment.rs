//! The environment variables that this crate reads. The other modules of this crate read variables
//! through this module. The crate `peerweave-dylib` reads the variables that set the paths of NVRTC
//! and nvJitLink.

use std::ffi::OsString;

/// Names of the environment variables that only this crate uses.
pub mod names {
    /// The variable that sets the directory of the disk cache. The value `off` disables the cache.
    pub const CACHE_DIR: &str = "PEERWEAVE_CACHE_DIR";
    /// The variable that lists the directories with CUDA's headers, separated as in `PATH`. If the
    /// variable is set, no other directory is searched.
    pub const CUDA_INCLUDE: &str = "PEERWEAVE_CUDA_INCLUDE";
    /// The variable that sets the directory with the folders `include` and `lib` of NVSHMEM's
    /// device library. If the variable is set, no other directory is searched.
    pub const NVSHMEM_DEVICE_PATH: &str = "PEERWEAVE_NVSHMEM_DEVICE_PATH";
}

/// Returns the value of an environment variable; `None` if the variable is empty or not set.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
