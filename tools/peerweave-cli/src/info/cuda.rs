//! The parts of `peerweave info` that report GPUs: NVIDIA's libraries, the functions that each
//! library lacks, and peer access.
//!
//! Creates no context and allocates no memory. Without the feature `cuda`, `no_cuda.rs` provides
//! the same functions instead.

use peerweave_driver::{Driver, DriverError, multicast_switch};
use peerweave_nccl::{Nccl, NcclError};
use peerweave_nvshmem::{Nvshmem, NvshmemError};
use peerweave_vmm::PeerMatrix;
use peerweave_vmm::peer::{DeviceInfo, PairInfo};

use super::libraries::{Function, Library, Multicast};
use super::peers::{Gpu, Pair, Peers};
use peerweave_bench::cuda::NO_DRIVER;

/// Searches for NVIDIA's libraries. Returns the properties of each library, or the reason why the
/// library is not usable.
pub(super) fn libraries() -> Vec<Library> {
    let later = "no subcommand of this peerweave version uses this library";
    vec![
        driver(),
        nccl(),
        nvshmem(),
        Library::absent("nvJitLink", "not looked for", later),
        Library::absent("NVRTC", "not looked for", later),
    ]
}

/// Returns whether PEERWEAVE_MULTICAST allows multicast objects.
pub(super) fn multicast() -> Multicast {
    let why = multicast_switch().err().map(|error| error.to_string());
    Multicast { allowed: why.is_none(), why }
}

/// Returns the GPUs and the peer access between them, as the driver reports them.
pub(super) fn peers() -> Peers {
    let matrix = match PeerMatrix::look() {
        Ok(matrix) => matrix,
        // Shows only the first line of the error; the paths that were tried are shown with the
        // libraries.
        Err(error) => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            return Peers::none(line.trim_end_matches("; tried:").to_owned());
        }
    };
    let gpu = |device: &DeviceInfo| Gpu {
        name: device.name.clone(),
        pci_address: device.pci_address.clone(),
        vmm: device.vmm,
        file_descriptor: device.exportable.file_descriptor,
        fabric: device.exportable.fabric,
        multicast: device.multicast,
    };
    let pair = |pair: &Option<PairInfo>| {
        pair.map(|pair| Pair {
            access: pair.access,
            native_atomics: pair.native_atomics,
            performance_rank: pair.performance_rank,
        })
    };
    Peers {
        missing: None,
        gpus: matrix.devices.iter().map(gpu).collect(),
        pairs: matrix.pairs.iter().map(|row| row.iter().map(pair).collect()).collect(),
    }
}

fn function(name: &impl ToString, since: &impl ToString) -> Function {
    Function { name: name.to_string(), since: since.to_string() }
}

fn driver() -> Library {
    const NAME: &str = "CUDA driver";
    let driver = match Driver::get() {
        Ok(driver) => driver,
        Err(error @ DriverError::Load(_)) => {
            return Library::absent(NAME, "not found", &format!("{error}\n{NO_DRIVER}"));
        }
        Err(error) => return Library::absent(NAME, "not usable", &error.to_string()),
    };
    let (devices, why) = match driver.device_count() {
        Ok(devices) => (Some(devices), Vec::new()),
        Err(error) => (None, vec![error.to_string()]),
    };
    Library {
        name: NAME,
        state: "found",
        version: driver.version().ok().map(|version| format!("{version:#}")),
        path: Some(driver.api().library().path().display().to_string()),
        lacks: driver.api().missing().iter().map(|symbol| function(&symbol.name, &symbol.since)).collect(),
        devices,
        others: Vec::new(),
        why,
    }
}

fn nccl() -> Library {
    const NAME: &str = "NCCL";
    match Nccl::load() {
        Ok(nccl) => Library {
            name: NAME,
            state: "found",
            version: Some(nccl.version().to_string()),
            path: Some(nccl.path().display().to_string()),
            lacks: nccl.missing().iter().map(|symbol| function(&symbol.name, &symbol.since)).collect(),
            devices: None,
            others: nccl.others().iter().map(|other| other.display().to_string()).collect(),
            why: Vec::new(),
        },
        Err(error @ NcclError::Load(_)) => Library::absent(NAME, "not found", &error.to_string()),
        Err(error) => Library::absent(NAME, "not usable", &error.to_string()),
    }
}

fn nvshmem() -> Library {
    const NAME: &str = "NVSHMEM";
    match Nvshmem::load() {
        Ok(nvshmem) => Library {
            name: NAME,
            state: "found",
            version: Some(nvshmem.version().to_string()),
            path: Some(nvshmem.path().display().to_string()),
            lacks: nvshmem.missing().iter().map(|symbol| function(&symbol.name, &symbol.since)).collect(),
            devices: None,
            others: Vec::new(),
            why: Vec::new(),
        },
        Err(error @ NvshmemError::Load(_)) => Library::absent(NAME, "not found", &error.to_string()),
        Err(error) => Library::absent(NAME, "not usable", &error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_library_has_a_path_or_a_reason_for_its_absence() {
        for library in libraries() {
            assert_eq!(library.path.is_some(), library.why.is_empty(), "{library:?}");
            assert_eq!(library.path.is_some(), library.state == "found", "{library:?}");
        }
    }
}
