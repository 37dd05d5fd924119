//! The kernel context in device memory, and the tables to which it refers.
//!
//! The tables are created once, with an entry for each team number. The entry is overwritten when a
//! new team gets the number. Invariant: the memory of the context and its tables stays allocated
//! while the [`Tables`] live, and while a graph owns handles of this memory.

use std::sync::Arc;

use peerweave_driver::{CudaStream, DeviceBuffer as _, DeviceMemory, DriverError, Keep};
use peerweave_types::{KernelContext, Pe, PeerEntry, Plain, SymOffset, TeamEntry};

/// The context and the tables that kernels of a GPU read, in device memory.
#[derive(Debug)]
pub(crate) struct Tables {
    context: DeviceMemory<u64>,
    peers: DeviceMemory<u64>,
    teams: DeviceMemory<u64>,
    /// For each team number, an array of the members' PE numbers. Each array has room for all PEs.
    members: DeviceMemory<u32>,
    /// For each team number, an array of epochs: one for each block index that can synchronise. An
    /// epoch counts the completed synchronisations of the team by blocks with this index.
    epochs: DeviceMemory<u64>,
    contents: Contents,
}

/// Number of 64-bit words in an entry of the team table.
const TEAM_WORDS: usize = size_of::<TeamEntry>() / 8;

/// The values that the host writes to the context and to the tables.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) my_pe: u32,
    pub(crate) node_pe: u32,
    pub(crate) node_n_pes: u32,
    pub(crate) heap_bytes: u64,
    pub(crate) peers: Vec<PeerEntry>,
    /// Offset in the heap of the memory that members of teams write to synchronise. Each team
    /// number has [`Tables::sync_stride`] bytes of this memory, in the order of the numbers.
    pub(crate) sync: SymOffset,
    pub(crate) slots: u32,
    /// Maximum number of teams, including the team of all PEs.
    pub(crate) n_teams: u32,
    /// NVSHMEM's handle of the team of all PEs.
    pub(crate) nvshmem_team: i32,
    pub(crate) capabilities: u32,
    pub(crate) status: u64,
    pub(crate) abort: u64,
    pub(crate) deadline_ns: u64,
    pub(crate) multicast: u64,
}

/// Returns the content of a struct as 64-bit words. The size and the alignment of the struct must
/// be multiples of 8.
///
/// # Safety
/// `T` is `repr(C)` and has no padding.
unsafe fn words<T: Copy>(value: &T) -> Vec<u64> {
    const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>().is_multiple_of(8)) };
    let first = std::ptr::from_ref(value).cast::<u64>();
    // SAFETY: the struct consists of that many words and is aligned for them. All bytes are
    // initialised, because there is no padding.
    unsafe { std::slice::from_raw_parts(first, size_of::<T>() / 8) }.to_vec()
}

impl Tables {
    /// Creates the tables in the context of `stream`, and waits until they are written.
    pub(crate) fn new(stream: &Arc<CudaStream>, contents: Contents) -> Result<Self, DriverError> {
        let (n_pes, n_teams) = (contents.peers.len() as u32, contents.n_teams as usize);
        // SAFETY: entries are `repr(C)`, and their fields leave no padding.
        let peers: Vec<u64> = contents.peers.iter().flat_map(|entry| unsafe { words(entry) }).collect();
        let peers = DeviceMemory::from_slice(stream, &peers)?;
        let members = DeviceMemory::from_slice(stream, &vec![0; n_teams * n_pes as usize])?;
        let epochs = DeviceMemory::from_slice(stream, &vec![0; n_teams * contents.slots as usize])?;
        let nobody = TeamEntry { my_rank: TeamEntry::NOT_A_MEMBER, nvshmem_team: TeamEntry::NO_HANDLE, ..TeamEntry::default() };
        // SAFETY: the value is `repr(C)`, and its fields leave no padding.
        let teams = DeviceMemory::from_slice(stream, &unsafe { words(&nobody) }.repeat(n_teams))?;
        let context = KernelContext {
            version: KernelContext::VERSION,
            my_pe: contents.my_pe,
            n_pes,
            node_pe: contents.node_pe,
            node_n_pes: contents.node_n_pes,
            n_teams: contents.n_teams,
            capabilities: contents.capabilities,
            reserved: 0,
            heap_bytes: contents.heap_bytes,
            peers: peers.address(),
            teams: teams.address(),
            status: contents.status,
            abort: contents.abort,
            deadline_ns: contents.deadline_ns,
            multicast: contents.multicast,
            gone: 0,
        };
        // SAFETY: the value is `repr(C)`, and its fields leave no padding.
        let context = DeviceMemory::from_slice(stream, &unsafe { words(&context) })?;
        let mut tables = Self { context, peers, teams, members, epochs, contents };
        let world: Vec<u32> = (0..n_pes).collect();
        let handle = tables.contents.nvshmem_team;
        tables.write_team(stream, 0, &world, handle)?;
        Ok(tables)
    }

    /// Returns the size in bytes of the synchronisation lines of one team number. The lines are
    /// memory on the heap that the members of a team write to synchronise. The size is sufficient
    /// for a team of all PEs.
    pub(crate) fn sync_stride(n_pes: u32, slots: u32) -> u64 {
        TeamEntry::sync_bytes(n_pes, slots)
    }

    /// Returns the range of a team's synchronisation lines in bytes. The range is relative to the
    /// start of the lines of all teams.
    pub(crate) fn lines_of(&self, number: u32) -> std::ops::Range<usize> {
        let stride = Self::sync_stride(self.contents.peers.len() as u32, self.contents.slots) as usize;
        let start = number as usize * stride;
        start..start + stride
    }

    /// Writes the entry of a team with the PEs `members` to the team table, and sets the team's
    /// epochs to zero. Waits until the writes are complete. During this call, no kernel may use the
    /// team's number.
    pub(crate) fn write_team(
        &mut self,
        stream: &Arc<CudaStream>,
        number: u32,
        members: &[u32],
        nvshmem_team: i32,
    ) -> Result<(), DriverError> {
        let contents = &self.contents;
        let (n_pes, slots, at) = (contents.peers.len(), contents.slots as usize, number as usize);
        let mut own_members = self.members.slice(at * n_pes..at * n_pes + members.len())?;
        let mut epochs = self.epochs.slice(at * slots..(at + 1) * slots)?;
        let is_mapped = |pe: &u32| contents.peers[*pe as usize].transport == PeerEntry::MAPPED;
        let rank = members.iter().position(|pe| *pe == contents.my_pe);
        let entry = TeamEntry {
            my_rank: rank.map_or(TeamEntry::NOT_A_MEMBER, |rank| rank as u32),
            size: members.len() as u32,
            members: own_members.address(),
            sync: SymOffset(contents.sync.0 + u64::from(number) * Self::sync_stride(n_pes as u32, contents.slots)),
            epochs: epochs.address(),
            slots: contents.slots,
            nvshmem_team,
            all_mapped: u32::from(members.iter().all(is_mapped)),
            ..TeamEntry::default()
        };
        own_members.copy_from(stream, members)?;
        epochs.copy_from(stream, &vec![0; slots])?;
        // SAFETY: the entry is `repr(C)`, and its fields leave no padding.
        let words = unsafe { words(&entry) };
        self.teams.slice(at * TEAM_WORDS..(at + 1) * TEAM_WORDS)?.copy_from(stream, &words)
    }

    /// Enqueues writes that set all epochs of all teams to zero.
    pub(crate) fn forget_epochs(&mut self, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
        let zeros = vec![0; self.epochs.len()];
        self.epochs.copy_from(stream, &zeros)
    }

    /// Returns the address at which this device maps the heap of a PE. Returns `None` if the PE
    /// does not exist, or if its heap is not mapped.
    pub(crate) fn base_of(&self, pe: Pe) -> Option<u64> {
        let entry = self.contents.peers.get(pe.get() as usize)?;
        (entry.transport == PeerEntry::MAPPED).then_some(entry.base)
    }

    /// Returns the device address of the context, which every kernel gets as its first argument.
    pub(crate) fn address(&self) -> u64 {
        self.context.address()
    }

    /// Records that a kernel of the caller on `stream` reads the tables. The tables then stay
    /// allocated until the stream has completed the kernel.
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

/// Returns the bytes of a slice of elements.
pub(crate) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: a plain type has no padding, so all bytes of the slice are initialised.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Converts bytes to elements of type `T`. Ignores an incomplete element at the end.
pub(crate) fn elements_of<T: Plain>(bytes: &[u8]) -> Vec<T> {
    let element = |bytes: &[u8]| {
        // SAFETY: the slice has as many bytes as an element, and every bit pattern is a valid value
        // of a plain type.
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
    fn elements_convert_to_bytes_and_back() {
        let values = [1.5_f64, -2.0, 3.25];
        assert_eq!(elements_of::<f64>(bytes_of(&values)), values);
        assert_eq!(elements_of::<u16>(&[1, 0, 2, 0, 3]), [1, 2]);
    }

    #[test]
    fn peer_entry_is_encoded_as_address_then_pe_and_transport() {
        let entry = PeerEntry { base: 0x1234, node_pe: 5, transport: 1 };
        // SAFETY: the entry is `repr(C)`, and its fields leave no padding.
        assert_eq!(unsafe { words(&entry) }, [0x1234, 5 | 1 << 32]);
        assert!(SymOffset(0) < SymOffset(1));
    }
}
