//! The memory that all PEs of a job share besides their heaps: the data of each PE, and a slot for
//! the exchanges of each team.
//!
//! Module `exchange` implements the exchanges. Invariant: zeroed memory is a valid initial state,
//! and the memory stays mapped as long as the process lives.

use core::cell::UnsafeCell;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Maximum number of PEs of a job.
pub(crate) const MAX_PES: usize = 32;
/// Maximum number of teams of a job, including the predefined ones.
pub(crate) const MAX_TEAMS: usize = 512;
/// Index of the first team that is not predefined.
pub(crate) const FIRST_MADE: usize = 8;

/// The data of one PE.
#[repr(C)]
pub(crate) struct Card {
    /// State of this data: 0 is unused, 1 is being written, 2 is written.
    pub(crate) state: AtomicU32,
    pub(crate) process: AtomicU32,
    pub(crate) heap_bytes: AtomicU64,
    pub(crate) uuid: [AtomicU64; 2],
    pub(crate) version: AtomicU64,
    pub(crate) algorithms: AtomicU64,
}

/// The data of a member in an exchange.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Record {
    /// Name of the exchange, the same on all members.
    pub(crate) name: [u8; 64],
    /// The arguments that must be the same on all members.
    pub(crate) same: [u64; 6],
    /// The data that may differ among the members.
    pub(crate) own: [u64; 4],
}

/// The state of one member in a channel.
#[repr(C)]
pub(crate) struct Member {
    /// Number of exchanges that the member has joined.
    pub(crate) count: AtomicU64,
    /// The member's data in the last two exchanges: a member that is one exchange ahead must not
    /// overwrite data that other members still read.
    pub(crate) records: [UnsafeCell<Record>; 2],
}

/// Slot of a team's exchanges.
#[repr(C)]
pub(crate) struct TeamSlot {
    pub(crate) used: AtomicU32,
    /// Number of members that have destroyed the team.
    pub(crate) left: AtomicU32,
    /// One channel for setup calls, one for collectives.
    pub(crate) channels: [[Member; MAX_PES]; 2],
}

/// A slot by which the members of a team created by id find each other.
#[repr(C)]
pub(crate) struct IdSlot {
    pub(crate) id: AtomicU64,
    /// The PE of each member plus one, by rank.
    pub(crate) members: [AtomicI32; MAX_PES],
    /// The index of the team's slot plus one.
    pub(crate) team: AtomicU32,
    pub(crate) left: AtomicU32,
}

/// The whole shared memory.
#[repr(C)]
pub(crate) struct Control {
    /// Number of PEs; 0 until a PE sets the number.
    pub(crate) ranks: AtomicI32,
    /// After a global exit, the exit status plus one. 0 before a global exit.
    pub(crate) exit: AtomicI32,
    pub(crate) cards: [Card; MAX_PES],
    pub(crate) ids: [IdSlot; 32],
    pub(crate) teams: [TeamSlot; MAX_TEAMS],
}

// SAFETY: the mapped memory is shared among threads and with other processes. All of it is atomic
// except the records, which are synchronised by the count of their member: only that member writes
// a record, before it counts the exchange; other members read the record afterwards (`exchange`).
// The test `collectives_return_exact_results_in_stream_order`, with three processes, would catch a
// mistake.
unsafe impl Sync for Control {}

impl Control {
    /// Allocates a free slot for a team, and clears it.
    pub(crate) fn take_team(&self) -> Option<usize> {
        (FIRST_MADE..MAX_TEAMS).find(|index| {
            let slot = &self.teams[*index];
            let free = slot.used.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if free {
                slot.left.store(0, Ordering::Relaxed);
                for member in slot.channels.iter().flatten() {
                    member.count.store(0, Ordering::Relaxed);
                }
            }
            free
        })
    }
}
