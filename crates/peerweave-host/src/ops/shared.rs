//! The state that the backend of one PE shares with its streams and operations.

use crate::memory::heap::HeapMap;
use crate::memory::layout::{PePage, state};
use crate::memory::segment::Mapping;
use crate::ops::launch::Kernels;
use crate::ops::point_to_point::TransferLists;
use crate::ops::queues::Queues;
use crate::sync::peers::Peers;
use crate::sync::root_cause;
use crate::sync::team::{REPORT_GRACE, Teams};
use peerweave_bootstrap::Rendezvous;
use peerweave_core::backend::{Caps, JobShape, Place};
use peerweave_fork::ForkGuard;
use peerweave_types::SymOffset;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time by which a wait for the end of operations exceeds the deadline of the world. After its own
/// deadline, an operation may search for the PE at fault for [`REPORT_GRACE`]. The longer wait lets
/// the operation end first, with an error that names this PE.
pub(crate) const COMPLETION_GRACE: Duration = REPORT_GRACE.saturating_add(Duration::from_millis(200));

/// The state of the backend of one PE.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) peers: Peers,
    pub(crate) job: JobShape,
    pub(crate) caps: Caps,
    /// Whether ranks compare the full parameters of calls in addition to the signatures.
    pub(crate) compare_calls: bool,
    /// Whether every PE can read the private memory of every other PE through the operating system.
    pub(crate) cross_memory: bool,
    pub(crate) teams: Teams,
    /// Number of attempts to create a team that calls of `team_of` on this PE have made. A call
    /// tries again if another call has taken the team slot. The lock allows only one call of
    /// `team_of` at a time.
    pub(crate) team_calls: Mutex<u64>,
    pub(crate) heap: Mutex<HeapMap>,
    pub(crate) kernels: Kernels,
    pub(crate) queues: Queues,
    pub(crate) transfers: TransferLists,
    pub(crate) guard: ForkGuard,
    /// The rendezvous of the job. The rendezvous stays open until finalize, so that the launcher
    /// and the other PEs see that this PE is alive.
    pub(crate) rendezvous: Mutex<Option<Arc<Rendezvous>>>,
    /// The rendezvous of the original job that the launcher has started, if this world was created
    /// by a shrink. Otherwise `None`. As long as this rendezvous is open, the launcher knows that
    /// this process continues.
    pub(crate) launcher: Mutex<Option<Arc<Rendezvous>>>,
    /// The mapped memory of the job. This is the last field of the struct, so the memory stays
    /// mapped until all other fields are dropped.
    pub(crate) _mapping: Arc<Mapping>,
}

impl Shared {
    pub(crate) fn n_pes(&self) -> usize {
        self.job.n_pes
    }

    /// Returns the address of a buffer of this PE.
    #[inline]
    pub(crate) fn address(&self, place: Place) -> *mut u8 {
        match place {
            Place::Symmetric(at) => self.own(at),
            Place::Private(at) => at,
            Place::Device { .. } => on_a_device(),
        }
    }

    /// Returns the address of an offset in the segment of this PE.
    #[inline]
    pub(crate) fn own(&self, at: SymOffset) -> *mut u8 {
        self.peers.segments.symmetric(self.peers.me, at)
    }

    /// Publishes that this PE has finalized. Does nothing if the PE has already left the job, or if
    /// this process is a forked child.
    pub(crate) fn finalized(&self) {
        if !self.guard.is_forked() {
            let page = self.peers.segments.page(self.peers.me);
            let _ = page.state.compare_exchange(state::ALIVE, state::FINALIZED, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Makes this PE leave the job. Has no effect if the PE has already finalized, or if this
    /// process is a forked child.
    pub(crate) fn leave(&self) {
        if !self.guard.is_forked() {
            let rendezvous = self.rendezvous.lock().unwrap_or_else(PoisonError::into_inner).take();
            leave(self.peers.segments.page(self.peers.me), rendezvous);
            drop(self.launcher.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// Panics, because this backend does not support buffers in device memory.
#[cold]
#[inline(never)]
pub(crate) fn on_a_device() -> ! {
    panic!("peerweave-core bug: the host backend received a buffer in device memory, expected host memory")
}

/// Makes a PE of this process leave the job: leaves the rendezvous, and publishes in the PE's
/// [`PePage`] that the PE has left.
///
/// Other PEs treat this PE as gone only when the page contains `LEFT`. The PE leaves the rendezvous
/// before it publishes `LEFT`. So if other PEs leave because of this PE, the rendezvous server sees
/// this PE leave first, and the launcher names this PE.
pub(crate) fn leave(page: &PePage, rendezvous: Option<Arc<Rendezvous>>) {
    if page.state.compare_exchange(state::ALIVE, state::LEAVING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        if let (Some(rendezvous), Some(pe)) = (&rendezvous, root_cause::pe_of(page.failure.load(Ordering::Relaxed))) {
            rendezvous.report_root_cause(pe);
        }
        drop(rendezvous);
        page.state.store(state::LEFT, Ordering::Release);
    }
}
