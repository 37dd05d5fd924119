//! Describes the peer access between GPUs for the report of `info`. The functions in `cuda.rs`
//! query the driver.

use serde::Serialize;

/// The GPUs and the peer access between them.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Peers {
    /// The reason why there are no GPUs to report; `None` if there are GPUs.
    pub(crate) missing: Option<String>,
    pub(crate) gpus: Vec<Gpu>,
    /// `pairs[from][to]` is the access of GPU `from` to the memory of GPU `to`; `None` on the
    /// diagonal.
    pub(crate) pairs: Vec<Vec<Option<Pair>>>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Gpu {
    pub(crate) name: String,
    pub(crate) pci_address: String,
    pub(crate) vmm: bool,
    pub(crate) file_descriptor: bool,
    pub(crate) fabric: bool,
    pub(crate) multicast: bool,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Pair {
    pub(crate) access: bool,
    pub(crate) native_atomics: bool,
    pub(crate) performance_rank: i32,
}

impl Peers {
    /// Returns the description of a machine without usable GPUs. `why` is the reason that is
    /// reported.
    pub(crate) fn none(why: String) -> Self {
        Self { missing: Some(why), gpus: Vec::new(), pairs: Vec::new() }
    }

    /// Returns the lines of the report, each as a name and a value.
    pub(crate) fn lines(&self) -> Vec<(String, String)> {
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
    fn peer_table_distinguishes_gpu_pairs_with_and_without_access() {
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
    fn missing_driver_is_the_reason_shown_for_an_empty_gpu_list() {
        let peers = Peers { missing: Some("CUDA's driver was not found".to_owned()), gpus: Vec::new(), pairs: Vec::new() };
        assert_eq!(peers.lines(), [("none".to_owned(), "CUDA's driver was not found".to_owned())]);
    }
}
