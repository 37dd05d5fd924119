//! The members of a communicator: the process and the device of each rank.
//!
//! Module `bootstrap` determines the members. Invariant: no two ranks of one process have the same
//! device.

use std::collections::HashMap;

use super::wire::Address;
use crate::abi::{Result, misuse};

/// The members of a communicator.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    /// The communicator's number, the same on all ranks.
    pub(crate) id: u128,
    pub(crate) rank: i32,
    /// The process of each rank.
    pub(crate) addresses: Vec<Address>,
    /// The device of each rank, as an ordinal in the rank's process.
    pub(crate) devices: Vec<i32>,
}

impl Members {
    /// Returns the number of ranks.
    pub(crate) fn ranks(&self) -> i32 {
        i32::try_from(self.addresses.len()).unwrap_or(i32::MAX)
    }
    /// Returns the size of the LSA teams: the ranks of one process, if every process has the same
    /// number of consecutive ranks; otherwise 1.
    pub(crate) fn lsa_size(&self) -> i32 {
        let addresses = &self.addresses;
        let block = addresses.iter().take_while(|address| *address == &addresses[0]).count();
        let mut blocks: Vec<_> = addresses.chunks(block).map(|chunk| (chunk.len(), chunk)).collect();
        let even = blocks.iter().all(|(length, chunk)| *length == block && chunk.iter().all(|address| *address == chunk[0]));
        blocks.sort_by_key(|(_, chunk)| chunk[0].clone());
        let distinct = blocks.windows(2).all(|pair| pair[0].1[0] != pair[1].1[0]);
        if even && distinct { block as i32 } else { 1 }
    }
}

/// Returns an error for two ranks of one process on one device, as NCCL does.
pub(super) fn check_devices(members: &Members) -> Result {
    let mut seen = HashMap::new();
    for (rank, place) in members.addresses.iter().zip(&members.devices).enumerate() {
        if let Some(other) = seen.insert(place, rank) {
            return misuse(format!("Duplicate GPU detected : rank {other} and rank {rank} both on CUDA device {}", place.1));
        }
    }
    Ok(())
}
