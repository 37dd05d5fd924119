//! The state of the job of which this process is a PE.
//!
//! Module `startup` creates the state. Invariant: the memory is locked while its bytes are
//! accessed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::memory::Memory;
use super::pending::Pending;
use super::teams::Teams;
use crate::call::{self, undefined};
use crate::peers::{Control, Team};

/// The state of a job.
pub(crate) struct World {
    pub(crate) pe: i32,
    pub(crate) ranks: i32,
    pub(crate) device: i32,
    pub(crate) context: usize,
    /// The process of each PE.
    pub(crate) processes: Vec<u32>,
    pub(crate) control: &'static Control,
    pub(crate) memory: RwLock<Memory>,
    pub(crate) growth: Growth,
    /// The team of all PEs.
    pub(crate) team: Arc<Team>,
    pub(crate) teams: Teams,
    /// Transfers on internal streams.
    pub(crate) pending: Pending,
    /// Transfers that the host has sent over the network.
    pub(crate) sent: Pending,
    /// Whether internal streams may have pending transfers for which no quiet has waited.
    pub(crate) left: AtomicBool,
    /// Initialized modules, by handle.
    pub(crate) modules: Mutex<Vec<usize>>,
    /// Whether a PE shares a GPU with another PE.
    pub(crate) shares_gpu: bool,
}

/// Growth of the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// The heap cannot grow: allocations that do not fit are refused.
    Fixed,
    /// The heap grows by this many bytes. If growing fails, NVSHMEM unmaps the whole heap and the
    /// process ends at the following barrier.
    By(usize),
}

impl World {
    /// Records that the host or a stream waits for the internal streams. Ends the process if a
    /// captured stream would wait for a pending transfer.
    pub(crate) fn quiesce(&self, captured: bool) {
        if self.left.swap(false, Ordering::AcqRel) && captured {
            undefined(&format!("{}: a graph would wait for an uncaptured stream with a pending nbi transfer", call::function()));
        }
    }

    /// Runs all pending transfers of internal streams.
    pub(crate) fn quiet(&self) {
        self.pending.complete();
    }

    /// Runs all pending transfers, including those that the host has sent.
    pub(crate) fn quiet_of_host(&self) {
        self.sent.complete();
        self.quiet();
    }

    /// Ends the process if the heap can grow, because NVSHMEM unmaps the heap when growing fails.
    /// Returns if the heap has a fixed size.
    pub(crate) fn torn(&self, what: &str) {
        if let Growth::By(step) = self.growth {
            undefined(&format!("{}: {what} (the heap grows by {step} bytes), and the heap is unmapped", call::function()));
        }
    }

    /// Locks the memory for accesses to its bytes.
    pub(crate) fn memory(&self) -> RwLockReadGuard<'_, Memory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the memory for changes of the allocations.
    pub(crate) fn change_memory(&self) -> RwLockWriteGuard<'_, Memory> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the initialized modules.
    pub(crate) fn modules(&self) -> MutexGuard<'_, Vec<usize>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the process if the job has no PE with this number.
    pub(crate) fn check_pe(&self, pe: i32) {
        if !(0..self.ranks).contains(&pe) {
            undefined(&format!("{}: PE {pe} does not exist in a job of {} PEs", call::function(), self.ranks));
        }
    }
}
