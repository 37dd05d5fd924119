//! A region of symmetric memory, and the addresses of each PE's part.
//!
//! Invariant: either all PEs map a region, or no PE uses the region.

use std::os::fd::AsRawFd;

use peerweave_fake_common::driver;

use crate::abi::{Code, Fail, Result, fail};
use crate::peers::exchange::Turn;
use crate::peers::mapping::{map_bytes, open_of_process, unmap_bytes};
use crate::peers::record;

/// A region of symmetric memory, of which every PE has a part.
pub(crate) struct Region {
    /// The driver's address of this PE's part.
    pub(crate) base: usize,
    pub(crate) bytes: usize,
    pub(crate) peers: Vec<Peer>,
    handle: u64,
}

/// Addresses of a PE's part.
pub(crate) struct Peer {
    /// The address that this library uses.
    pub(crate) own: usize,
    /// The address that the program uses; `None` if this device cannot access the PE's memory.
    pub(crate) given: Option<usize>,
}

impl Region {
    /// Maps the memory of a handle, and the memory that each other PE passes in this call.
    /// Collective.
    pub(crate) fn map(
        turn: &mut Turn<'_>,
        processes: &[u32],
        pe: usize,
        device: i32,
        handle: u64,
        bytes: usize,
        wish: usize,
    ) -> Result<Self> {
        let exported = driver::export(handle);
        let fd = exported.as_ref().map_or(-1, |file| file.as_raw_fd());
        let descriptors = turn.meet(record(&[bytes as u64], &[fd as u64]));
        let map = || -> Result<(usize, Vec<Peer>)> {
            let base = driver::map(device, handle, bytes, wish)?;
            let mut peers = Vec::new();
            for (other, theirs) in descriptors.iter().enumerate() {
                if other == pe {
                    peers.push(Peer { own: base, given: Some(base) });
                    continue;
                }
                let fd = theirs.own[0] as i32;
                if fd < 0 {
                    return fail(Code::INTERNAL, format!("PE {other} cannot share its memory"));
                }
                let file = open_of_process(processes[other], fd)?;
                let own = map_bytes(&file, bytes)?;
                let imported = driver::import(file.as_raw_fd())?;
                // If the driver cannot map the memory for this device, the program gets no pointer.
                let given = driver::map(device, imported, bytes, 0).ok();
                driver::release(imported)?;
                peers.push(Peer { own, given });
            }
            Ok((base, peers))
        };
        let mapped = exported.map_err(Fail::from).and_then(|file| map().map(|mapped| (mapped, file)));
        // Descriptors stay open until all PEs have mapped the files.
        let failed = turn.find_failed(&[bytes as u64], mapped.is_ok());
        let ((base, peers), _) = mapped?;
        if let Some(other) = failed {
            return fail(Code::INTERNAL, format!("PE {other} could not map the memory of others"));
        }
        Ok(Self { base, bytes, peers, handle })
    }

    /// Unmaps the region on this PE.
    pub(crate) fn unmap(self, pe: usize) -> Result {
        for (other, peer) in self.peers.iter().enumerate() {
            if other != pe {
                unmap_bytes(peer.own, self.bytes);
                if let Some(given) = peer.given {
                    driver::unmap(given, self.bytes)?;
                }
            }
        }
        driver::unmap(self.base, self.bytes)?;
        Ok(driver::release(self.handle)?)
    }
}
