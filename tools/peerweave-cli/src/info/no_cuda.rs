//! The functions of `cuda.rs` for a command that was built without the feature `cuda`. Each
//! function reports that the feature is missing.

use std::path::Path;

use super::libraries::{Library, Multicast};
use super::peers::Peers;
use peerweave_bench::cuda::NOT_BUILT_IN;

/// Returns NVIDIA's libraries, all with the state `not looked for`.
pub(super) fn libraries() -> Vec<Library> {
    ["CUDA driver", "NCCL", "NVSHMEM"].map(|name| Library::absent(name, "not looked for", NOT_BUILT_IN)).into()
}

/// Reports that multicast objects are not allowed, because this command was built without support
/// for GPUs.
pub(super) fn multicast() -> Multicast {
    Multicast { allowed: false, why: Some(NOT_BUILT_IN.to_owned()) }
}

/// Returns an empty list of GPUs, with the reason: this command was built without support for GPUs,
/// so it cannot look for them. If NVIDIA's kernel module is loaded, the reason also says this,
/// because the machine then has GPUs.
pub(super) fn peers() -> Peers {
    let loaded = Path::new("/proc/driver/nvidia/version").exists();
    let driver = if loaded { "NVIDIA's driver is loaded on this machine; " } else { "" };
    Peers::none(format!("{driver}{NOT_BUILT_IN}"))
}
