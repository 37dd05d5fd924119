//! Peer access between GPUs, as the driver reports it. Creates no context and allocates no memory.

use peerweave_vmm::PeerMatrix;
use peerweave_vmm::peer::{DeviceInfo, PairInfo};

use crate::info::peers::{Gpu, Pair, Peers};

/// Queries the driver, if there is one.
pub(crate) fn look() -> Peers {
    let matrix = match PeerMatrix::look() {
        Ok(matrix) => matrix,
        // Only the first line; the paths tried are shown with the libraries.
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
