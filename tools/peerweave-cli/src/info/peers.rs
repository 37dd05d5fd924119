//! Peer access between GPUs, as the driver reports it. Creates no context and allocates no memory.

use peerweave_vmm::PeerMatrix;
use serde::Serialize;

/// The GPUs and the access between them.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Peers {
    /// Why there are no GPUs to report.
    missing: Option<String>,
    gpus: Vec<Gpu>,
    /// `pairs[from][to]`; `None` on the diagonal.
    pairs: Vec<Vec<Option<Pair>>>,
}

#[derive(Clone, Debug, Serialize)]
struct Gpu {
    name: String,
    pci_address: String,
    vmm: bool,
    file_descriptor: bool,
    fabric: bool,
    multicast: bool,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Pair {
    access: bool,
    native_atomics: bool,
    performance_rank: i32,
}

impl Peers {
    /// Queries the driver, if there is one.
    pub(super) fn look() -> Self {
        let matrix = match PeerMatrix::look() {
            Ok(matrix) => matrix,
            // Only the first line; the paths tried are shown with the libraries.
            Err(error) => {
                let text = error.to_string();
                let line = text.lines().next().unwrap_or_default();
                let missing = Some(line.trim_end_matches("; tried:").to_owned());
                return Self { missing, gpus: Vec::new(), pairs: Vec::new() };
            }
        };
        let gpu = |device: &peerweave_vmm::peer::DeviceInfo| Gpu {
            name: device.name.clone(),
            pci_address: device.pci_address.clone(),
            vmm: device.vmm,
            file_descriptor: device.exportable.file_descriptor,
            fabric: device.exportable.fabric,
            multicast: device.multicast,
        };
        let pair = |pair: &Option<peerweave_vmm::peer::PairInfo>| {
            pair.map(|pair| Pair {
                access: pair.access,
                native_atomics: pair.native_atomics,
                performance_rank: pair.performance_rank,
            })
        };
        Self {
            missing: None,
            gpus: matrix.devices.iter().map(gpu).collect(),
            pairs: matrix.pairs.iter().map(|row| row.iter().map(pair).collect()).collect(),
        }
    }

    /// Formats this as names and values.
    pub(super) fn lines(&self) -> Vec<(String, String)> {
        if let Some(missing) = &self.missing {
            return vec![("none".to_owned(), missing.clone())];
        }
        let mut lines: Vec<(String, String)> = Vec::new();
        for (ordinal, gpu) in self.gpus.iter().enumerate() {
            let offers = [
                (gpu.vmm, "virtual memory"),
                (gpu.file_descriptor, "file descriptors"),
                (gpu.fabric, "fabric handles"),
                (gpu.multicast, "multicast"),
            ];
            let offers: Vec<&str> = offers.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
            lines.push((format!("GPU {ordinal}"), format!("{} at {} ({})", gpu.name, gpu.pci_address, offers.join(", "))));
        }
        for (from, row) in self.pairs.iter().enumerate().filter(|_| self.gpus.len() > 1) {
            let cell = |cell: &Option<Pair>| match cell {
                None => "-".to_owned(),
                Some(Pair { access: false, .. }) => "no".to_owned(),
                Some(Pair { native_atomics, performance_rank, .. }) => {
                    format!("{}{performance_rank}", if *native_atomics { "a" } else { "r" })
                }
            };
            let cells: Vec<String> = row.iter().map(|pair| format!("{:>3}", cell(pair))).collect();
            lines.push((format!("from {from} to"), cells.join(" ")));
        }
        if self.gpus.len() > 1 {
            let legend =
                "a: reads, writes and atomics; r: reads and writes; number: the driver's performance rank, lower is faster";
            lines.push(("".to_owned(), legend.to_owned()));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_with_and_without_access_differ_in_the_table() {
        let gpu = |name: &str| Gpu {
            name: name.to_owned(),
            pci_address: "0000:01:00.0".to_owned(),
            vmm: true,
            file_descriptor: true,
            fabric: false,
            multicast: false,
        };
        let way = Some(Pair { access: true, native_atomics: true, performance_rank: 0 });
        let none = Some(Pair { access: false, native_atomics: false, performance_rank: 1 });
        let peers = Peers { missing: None, gpus: vec![gpu("one"), gpu("two")], pairs: vec![vec![None, way], vec![none, None]] };
        let lines = peers.lines();
        assert_eq!(lines[0].1, "one at 0000:01:00.0 (virtual memory, file descriptors)");
        assert_eq!((lines[2].1.as_str(), lines[3].1.as_str()), ("  -  a0", " no   -"));
    }

    #[test]
    fn missing_driver_is_shown_as_the_reason() {
        let peers = Peers { missing: Some("CUDA's driver was not found".to_owned()), gpus: Vec::new(), pairs: Vec::new() };
        assert_eq!(peers.lines(), [("none".to_owned(), "CUDA's driver was not found".to_owned())]);
    }
}
