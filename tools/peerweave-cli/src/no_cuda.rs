//! The functions of `cuda` in a command that was built without that feature: each says so.

use std::path::Path;

use crate::bench::config::Config;
use crate::bench::p2p::P2pArgs;
use crate::bench::p2p::report::Report;
use crate::info::libraries::{Library, Multicast};
use crate::info::peers::Peers;

const NOT_BUILT_IN: &str = "this command was built without support for GPUs; build it with `--features cuda`";

/// Refuses a PE on a GPU.
pub(crate) fn nccl_pe(_: &Config) -> Result<(), Box<dyn std::error::Error>> {
    Err(NOT_BUILT_IN.into())
}

/// Refuses a PE on a GPU.
pub(crate) fn nvshmem_pe(config: &Config) -> Result<(), Box<dyn std::error::Error>> {
    nccl_pe(config)
}

/// Refuses a backend that needs GPUs.
pub(crate) fn device_count() -> Result<Option<usize>, String> {
    Err(NOT_BUILT_IN.to_owned())
}

/// Refuses measurements between GPUs.
pub(crate) fn measure_p2p(_: &P2pArgs) -> Result<Report, String> {
    Err(NOT_BUILT_IN.to_owned())
}

/// Returns the libraries that are not looked for.
pub(crate) fn libraries() -> Vec<Library> {
    ["CUDA driver", "NCCL", "NVSHMEM"].map(|name| Library::absent(name, "not looked for", NOT_BUILT_IN)).into()
}

/// Returns that there are no multicast objects.
pub(crate) fn multicast() -> Multicast {
    Multicast { allowed: false, why: Some(NOT_BUILT_IN.to_owned()) }
}

/// Returns no GPUs. Says whether the driver of Linux is loaded, since then there are GPUs.
pub(crate) fn peers() -> Peers {
    let loaded = Path::new("/proc/driver/nvidia/version").exists();
    let driver = if loaded { "NVIDIA's driver is loaded on this machine, but " } else { "" };
    Peers::none(format!("{driver}{NOT_BUILT_IN}"))
}
