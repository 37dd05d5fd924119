//! A team of which this PE is a member, and the count of its collectives.
//!
//! Module `exchange` has the operations that members do together. Invariant: the last member that
//! leaves a team frees the team's slot.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::control::{Control, TeamSlot};

/// Counts the collectives of a team.
#[derive(Default)]
pub(crate) struct Flights {
    called: AtomicU64,
    done: AtomicU64,
}

/// A team of which this PE is a member.
pub(crate) struct Team {
    pub(crate) handle: i32,
    pub(crate) index: usize,
    pub(crate) control: &'static Control,
    /// PEs in rank order.
    pub(crate) members: Vec<i32>,
    /// This PE's rank.
    pub(crate) me: usize,
    pub(crate) contexts: i32,
    pub(crate) id: u64,
    pub(crate) gone: AtomicBool,
    pub(crate) flights: Arc<Flights>,
    /// Number of exchanges that this PE has joined, by channel.
    pub(super) turns: [Mutex<u64>; 2],
}

impl Flights {
    /// Counts a call and returns its position.
    pub(crate) fn call(&self) -> u64 {
        self.called.fetch_add(1, Ordering::AcqRel)
    }

    /// Removes a call that could not be enqueued.
    pub(crate) fn take_back(&self) {
        self.called.fetch_sub(1, Ordering::AcqRel);
    }

    /// Marks the collective at a position as complete.
    pub(super) fn complete(&self, place: u64) {
        self.done.store(place + 1, Ordering::Release);
    }

    /// Returns the number of complete collectives.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    /// Returns whether a collective is pending.
    pub(super) fn is_pending(&self) -> bool {
        self.done() != self.called.load(Ordering::Acquire)
    }
}

impl Team {
    pub(crate) fn new(control: &'static Control, handle: i32, index: usize, members: Vec<i32>, pe: i32) -> Self {
        let me = members.iter().position(|member| *member == pe).expect("this PE is a member");
        Self {
            handle,
            index,
            control,
            members,
            me,
            contexts: 0,
            id: u64::MAX,
            gone: AtomicBool::new(false),
            flights: Arc::default(),
            turns: [const { Mutex::new(0) }; 2],
        }
    }

    /// Returns the slot of the team's exchanges.
    pub(super) fn slot(&self) -> &'static TeamSlot {
        &self.control.teams[self.index]
    }

    /// Leaves the team. The last member that leaves frees the team's slot.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::Release);
        if self.members.len() > 1 {
            let slot = self.slot();
            if slot.left.fetch_add(1, Ordering::AcqRel) + 1 == self.members.len() as u32 {
                slot.used.store(0, Ordering::Release);
            }
        }
    }
}
