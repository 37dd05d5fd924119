//! Finds NVIDIA's libraries and lists the functions that each lacks. Calls only their version
//! functions.

use peerweave_driver::{Driver, DriverError, multicast_switch};
use peerweave_nccl::{Nccl, NcclError};
use peerweave_nvshmem::{Nvshmem, NvshmemError};

use crate::info::libraries::{Function, Library, Multicast};

/// Advice for machines without a driver.
pub(super) const NO_DRIVER: &str =
    "install NVIDIA's GPU driver, which contains it (the CUDA toolkit does not); a container needs access to the host's driver";

/// Looks for all libraries.
pub(crate) fn look() -> Vec<Library> {
    let later = "the commands of this version do not use it";
    vec![
        driver(),
        nccl(),
        nvshmem(),
        Library::absent("nvJitLink", "not looked for", later),
        Library::absent("NVRTC", "not looked for", later),
    ]
}

/// Whether multicast objects are allowed.
pub(crate) fn multicast() -> Multicast {
    let why = multicast_switch().err().map(|error| error.to_string());
    Multicast { allowed: why.is_none(), why }
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
    fn library_has_a_path_or_a_reason() {
        for library in look() {
            assert_eq!(library.path.is_some(), library.why.is_empty(), "{library:?}");
            assert_eq!(library.path.is_some(), library.state == "found", "{library:?}");
        }
    }
}
