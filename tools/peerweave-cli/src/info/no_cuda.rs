//! The functions of `cuda.rs` in a command that was built without that feature: each says so.

use std::path::Path;

use super::libraries::{Library, Multicast};
use super::peers::Peers;
use crate::cuda::NOT_BUILT_IN;

/// Returns the libraries that are not looked for.
pub(super) fn libraries() -> Vec<Library> {
    ["CUDA driver", "NCCL", "NVSHMEM"].map(|name| Library::absent(name, "not looked for", NOT_BUILT_IN)).into()
}

/// Returns that there are no multicast objects.
pub(super) fn multicast() -> Multicast {
    Multicast { allowed: false, why: Some(NOT_BUILT_IN.to_owned()) }
}

/// Returns no GPUs. Says whether the driver of Linux is loaded, since then there are GPUs.
pub(super) fn peers() -> Peers {
    let loaded = Path::new("/proc/driver/nvidia/version").exists();
    let driver = if loaded { "NVIDIA's driver is loaded on this machine, but " } else { "" };
    Peers::none(format!("{driver}{NOT_BUILT_IN}"))
}
