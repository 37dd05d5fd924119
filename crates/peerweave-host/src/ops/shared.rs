//! What all parts of the backend of one PE hold in common.

use crate::memory::heap::HeapMap;
use crate::memory::layout::{PePage, Segments, state};
use crate::memory::segment::Mapping;
use crate::ops::launch::Kernels;
use crate::sync::liveness::Liveness;
use crate::sync::root_cause;
use crate::sync::team::Teams;
use crate::sync::wait::{Limit, Neighbours, Waiter};
use peerweave_bootstrap::Rendezvous;
use peerweave_core::backend::{Caps, JobShape, Place};
use peerweave_fork::ForkGuard;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// One PE's view of the job.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) segments: Segments,
    pub(crate) me: usize,
    pub(crate) job: JobShape,
    pub(crate) caps: Caps,
    pub(crate) deadline: Duration,
    /// There are fewer processors than PEs.
    pub(crate) crowded: bool,
    /// Another PE was seen to run on this one's processor.
    pub(crate) shares_processor: AtomicBool,
    /// Compare full calls and not only their signatures.
    pub(crate) compare_calls: bool,
    /// Every PE may read the memory of every other one.
    pub(crate) attach: bool,
    pub(crate) liveness: Liveness,
    pub(crate) teams: Teams,
    pub(crate) heap: Mutex<HeapMap>,
    pub(crate) kernels: Kernels,
    /// Operations in the queues of all streams.
    pub(crate) queued: AtomicUsize,
    pub(crate) guard: ForkGuard,
    /// Kept open until finalize: it tells the launcher, and who meets there later, that this PE lives.
    pub(crate) rendezvous: Mutex<Option<Arc<Rendezvous>>>,
    /// Last, so that it is unmapped last.
    pub(crate) _mapping: Arc<Mapping>,
}

impl Shared {
    pub(crate) fn n_pes(&self) -> usize {
        self.job.n_pes
    }

    #[inline]
    pub(crate) fn waiter(&self, limit: Limit) -> Waiter<'_> {
        Waiter::new(
            self.crowded,
            Some(Neighbours { segments: &self.segments, me: self.me, shared: &self.shares_processor }),
            limit,
        )
    }

    /// The address of a place of this PE.
    #[inline]
    pub(crate) fn address(&self, place: Place) -> *mut u8 {
        match place {
            Place::Symmetric(at) => self.segments.symmetric(self.me, at),
            Place::Private(at) => at,
        }
    }

    /// Says that this PE takes part no more, and that it did its part. Only the first word counts, and a forked child says nothing.
    pub(crate) fn finalized(&self) {
        if !self.guard.is_forked() {
            let page = self.segments.page(self.me);
            let _ = page.state.compare_exchange(state::ALIVE, state::FINALIZED, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Says that this PE takes part no more, where it has not said so before. A forked child says nothing.
    pub(crate) fn leave(&self) {
        if !self.guard.is_forked() {
            let rendezvous = self.rendezvous.lock().unwrap_or_else(PoisonError::into_inner).take();
            leave(self.segments.page(self.me), rendezvous);
        }
    }
}

/// Says in the page of a PE of this process that it leaves, and leaves the rendezvous.
///
/// The others go on from here only when they read `LEFT`. The rendezvous sees this PE go before that, and so before any PE that goes because of it: a
/// launcher that holds it names the first one.
pub(crate) fn leave(page: &PePage, rendezvous: Option<Arc<Rendezvous>>) {
    if page.state.compare_exchange(state::ALIVE, state::LEAVING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        if let (Some(rendezvous), Some(pe)) = (&rendezvous, root_cause::named_by(page.blames.load(Ordering::Relaxed))) {
            rendezvous.blame(pe);
        }
        drop(rendezvous);
        page.state.store(state::LEFT, Ordering::Release);
    }
}
