//! Finds NVIDIA's libraries and lists the functions that each lacks. Calls only their version
//! functions.

use peerweave_driver::{Driver, multicast_switch};
use peerweave_nccl::Nccl;
use peerweave_nvshmem::{Nvshmem, NvshmemError};
use serde::Serialize;

/// A library of NVIDIA.
#[derive(Debug, Serialize)]
pub(super) struct Library {
    /// Its name.
    pub name: &'static str,
    /// `found`, `not found`, `not usable` or `not looked for`.
    pub state: &'static str,
    /// Its version, if it was found.
    pub version: Option<String>,
    /// Its file, if it was found.
    pub path: Option<String>,
    /// Functions that it lacks.
    pub lacks: Vec<Function>,
    /// Number of devices; only for the driver.
    pub devices: Option<usize>,
    /// Other files of this library that are mapped in this process, which should not happen.
    pub others: Vec<String>,
    /// Why it was not found, with every path tried.
    pub why: Vec<String>,
}

/// A function of a library.
#[derive(Debug, Serialize)]
pub(super) struct Function {
    /// Its name.
    pub name: String,
    /// First version that has it.
    pub since: String,
}

impl Function {
    fn of(name: impl ToString, since: impl ToString) -> Self {
        Self { name: name.to_string(), since: since.to_string() }
    }
}

/// Whether multicast objects are allowed.
#[derive(Debug, Serialize)]
pub(super) struct Multicast {
    /// False if a variable disables them.
    pub allowed: bool,
    /// The variable that disables them.
    pub why: Option<String>,
}

impl Multicast {
    /// Formats this as text.
    pub(super) fn text(&self) -> String {
        self.why.clone().unwrap_or_else(|| "allowed on devices that support them".to_owned())
    }
}

impl Library {
    fn absent(name: &'static str, state: &'static str, why: &str) -> Self {
        Self {
            name,
            state,
            version: None,
            path: None,
            lacks: Vec::new(),
            devices: None,
            others: Vec::new(),
            why: why.lines().map(|line| line.trim().to_owned()).collect(),
        }
    }

    /// Formats this as names and values.
    pub(super) fn lines(&self) -> Vec<(String, String)> {
        let version = self.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
        let path = self.path.as_ref().map(|path| format!(", {path}")).unwrap_or_default();
        let mut lines = vec![(self.name.to_owned(), format!("{}{version}{path}", self.state))];
        lines.extend(self.devices.map(|devices| (String::new(), format!("{devices} devices"))));
        lines.extend(self.others.iter().map(|other| (String::new(), format!("another copy is also mapped: {other}"))));
        lines.extend(self.why.iter().map(|why| (String::new(), why.clone())));
        if !self.lacks.is_empty() {
            let lacks: Vec<_> = self.lacks.iter().map(|Function { name, since }| format!("{name} ({since})")).collect();
            lines.push((String::new(), format!("lacks {}", lacks.join(", "))));
        }
        lines
    }
}

/// Advice for machines without a driver.
pub(crate) const NO_DRIVER: &str =
    "install NVIDIA's GPU driver, which contains it (the CUDA toolkit does not); a container needs access to the host's driver";

/// Looks for all libraries.
pub(super) fn look() -> Vec<Library> {
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
pub(super) fn multicast() -> Multicast {
    let why = multicast_switch().err().map(|error| error.to_string());
    Multicast { allowed: why.is_none(), why }
}

fn driver() -> Library {
    const NAME: &str = "CUDA driver";
    let driver = match Driver::get() {
        Ok(driver) => driver,
        Err(error @ peerweave_driver::DriverError::Load(_)) => {
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
        lacks: driver.api().missing().iter().map(|symbol| Function::of(symbol.name, symbol.since)).collect(),
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
            lacks: nccl.missing().iter().map(|symbol| Function::of(symbol.name, symbol.since)).collect(),
            devices: None,
            others: nccl.others().iter().map(|other| other.display().to_string()).collect(),
            why: Vec::new(),
        },
        Err(error @ peerweave_nccl::NcclError::Load(_)) => Library::absent(NAME, "not found", &error.to_string()),
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
            lacks: nvshmem.missing().iter().map(|symbol| Function::of(symbol.name, symbol.since)).collect(),
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
