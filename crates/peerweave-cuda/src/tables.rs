//! The kernel context in memory of the device, and the tables that it leads to.
//!
//! Built once. Invariant: what a kernel reaches through the context lives as long as this value, which graphs keep.

use std::sync::Arc;

use peerweave_driver::{CudaStream, DeviceBuffer as _, DeviceMemory, DriverError, Keep};
use peerweave_types::{KernelContext, PeerEntry, Plain, SymOffset, TeamEntry};

/// All that kernels of one GPU read about the job.
#[derive(Debug)]
pub(crate) struct Tables {
    context: DeviceMemory<u64>,
    peers: DeviceMemory<u64>,
    teams: DeviceMemory<u64>,
    members: DeviceMemory<u32>,
    epochs: DeviceMemory<u64>,
}

/// Inputs of the tables.
pub(crate) struct Contents {
    pub(crate) my_pe: u32,
    pub(crate) node_pe: u32,
    pub(crate) node_n_pes: u32,
    pub(crate) heap_bytes: u64,
    pub(crate) peers: Vec<PeerEntry>,
    /// Where the lines of the team of all PEs are in the heap.
    pub(crate) sync: SymOffset,
    pub(crate) slots: u32,
    pub(crate) nvshmem_team: i32,
    pub(crate) capabilities: u32,
    pub(crate) status: u64,
    pub(crate) abort: u64,
    pub(crate) deadline_ns: u64,
    pub(crate) multicast: u64,
}

/// A struct without padding whose size is a multiple of 8, as words.
///
/// # Safety
/// `T` is `repr(C)` and has no padding.
unsafe fn words<T: Copy>(value: &T) -> Vec<u64> {
    const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>().is_multiple_of(8)) };
    let first = std::ptr::from_ref(value).cast::<u64>();
    // SAFETY: the struct has so many whole words, all of them initialised since there is no padding, at an address that is aligned to them.
    unsafe { std::slice::from_raw_parts(first, size_of::<T>() / 8) }.to_vec()
}

impl Tables {
    /// Builds the tables in the context of `stream`, and waits until they are there.
    pub(crate) fn new(stream: &Arc<CudaStream>, contents: &Contents) -> Result<Self, DriverError> {
        let n_pes = contents.peers.len() as u32;
        // SAFETY: entries are `repr(C)` of fields that fill them.
        let peers: Vec<u64> = contents.peers.iter().flat_map(|entry| unsafe { words(entry) }).collect();
        let peers = DeviceMemory::from_slice(stream, &peers)?;
        let members = DeviceMemory::from_slice(stream, &(0..n_pes).collect::<Vec<u32>>())?;
        let epochs = DeviceMemory::zeroed(stream, contents.slots as usize)?;
        let all_mapped = contents.peers.iter().all(|entry| entry.transport == PeerEntry::MAPPED);
        let team = TeamEntry {
            my_rank: contents.my_pe,
            size: n_pes,
            members: members.address(),
            sync: contents.sync,
            epochs: epochs.address(),
            slots: contents.slots,
            nvshmem_team: contents.nvshmem_team,
            all_mapped: u32::from(all_mapped),
            ..TeamEntry::default()
        };
        // SAFETY: as above.
        let teams = DeviceMemory::from_slice(stream, &unsafe { words(&team) })?;
        let context = KernelContext {
            version: KernelContext::VERSION,
            my_pe: contents.my_pe,
            n_pes,
            node_pe: contents.node_pe,
            node_n_pes: contents.node_n_pes,
            n_teams: 1,
            capabilities: contents.capabilities,
            reserved: 0,
            heap_bytes: contents.heap_bytes,
            peers: peers.address(),
            teams: teams.address(),
            status: contents.status,
            abort: contents.abort,
            deadline_ns: contents.deadline_ns,
            multicast: contents.multicast,
            reserved_words: [0],
        };
        // SAFETY: as above.
        let context = DeviceMemory::from_slice(stream, &unsafe { words(&context) })?;
        Ok(Self { context, peers, teams, members, epochs })
    }

    /// Sets the epochs of all slots to zero, in the order of the stream.
    pub(crate) fn forget_epochs(&mut self, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
        let zeros = vec![0; self.epochs.len()];
        self.epochs.copy_from(stream, &zeros)
    }

    /// The address that a kernel is launched with.
    pub(crate) fn address(&self) -> u64 {
        self.context.address()
    }

    /// Notes that a kernel which reads the tables is about to be enqueued.
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        for memory in [&self.context, &self.peers, &self.teams, &self.epochs] {
            drop(memory.read(stream));
        }
        drop(self.members.read(stream));
    }

    pub(crate) fn keep(&self) -> Vec<Keep> {
        let words = [&self.context, &self.peers, &self.teams, &self.epochs].map(|memory| memory.keep());
        words.into_iter().flatten().map(|(_, keep)| keep).chain(self.members.keep().map(|(_, keep)| keep)).collect()
    }
}

/// Elements as bytes.
pub(crate) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: a plain type has no padding, so that all bytes of the slice are initialised.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Bytes as elements; bytes that make no whole element are left out.
pub(crate) fn elements_of<T: Plain>(bytes: &[u8]) -> Vec<T> {
    let element = |bytes: &[u8]| {
        // SAFETY: there are as many bytes as an element has, and every pattern of them is a valid value of a plain type.
        unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
    };
    match size_of::<T>() {
        0 => Vec::new(),
        size => bytes.chunks_exact(size).map(element).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_their_bytes() {
        let values = [1.5_f64, -2.0, 3.25];
        assert_eq!(elements_of::<f64>(bytes_of(&values)), values);
        assert_eq!(elements_of::<u16>(&[1, 0, 2, 0, 3]), [1, 2]);
    }

    #[test]
    fn entries_become_their_words() {
        let entry = PeerEntry { base: 0x1234, node_pe: 5, transport: 1 };
        // SAFETY: the entry is `repr(C)` of fields that fill it.
        assert_eq!(unsafe { words(&entry) }, [0x1234, 5 | 1 << 32]);
        assert!(SymOffset(0) < SymOffset(1));
    }
}
