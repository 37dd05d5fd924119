//! The other PEs of the job, as this PE sees them: their control words, and whether they are alive.

use crate::memory::layout::Segments;
use crate::platform;
use crate::sync::abort::JobAbort;
use crate::sync::liveness::Liveness;
use crate::sync::wait::{Limit, Waiter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The PEs of the job, with the state that this PE needs to access and watch them.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) segments: Segments,
    pub(crate) me: usize,
    /// Maximum time of every wait for which the caller passes no deadline.
    pub(crate) deadline: Duration,
    pub(crate) liveness: Liveness,
    pub(crate) job_abort: JobAbort,
    /// Whether there are fewer processors than PEs.
    oversubscribed: bool,
    /// Result of the last call of [`Peers::shares_my_processor`]: whether another PE ran on the
    /// same processor as this PE.
    shared_processor: AtomicBool,
}

impl Peers {
    pub(crate) fn new(
        segments: Segments,
        me: usize,
        deadline: Duration,
        liveness: Liveness,
        job_abort: JobAbort,
        oversubscribed: bool,
    ) -> Self {
        Self { segments, me, deadline, liveness, job_abort, oversubscribed, shared_processor: AtomicBool::new(false) }
    }

    pub(crate) fn n_pes(&self) -> usize {
        self.segments.layout().n_pes
    }

    /// Starts a wait with the given time limit.
    #[inline]
    pub(crate) fn waiter(&self, limit: Limit) -> Waiter<'_> {
        Waiter::new(Some(self), self.oversubscribed, limit)
    }

    /// Returns the result of the last call of [`Peers::shares_my_processor`]: whether another PE
    /// used the same processor as this PE.
    #[inline]
    pub(crate) fn shared_my_processor(&self) -> bool {
        self.shared_processor.load(Ordering::Relaxed)
    }

    /// Returns whether this PE and another PE run on the same processor. For this check, each PE
    /// that calls this function publishes its current processor. The function compares this PE's
    /// processor with those that the other PEs have published last.
    pub(crate) fn shares_my_processor(&self) -> bool {
        let Some(processor) = platform::processor() else { return false };
        let word = |pe: usize| &self.segments.page(pe).processor;
        word(self.me).store(processor + 1, Ordering::Relaxed);
        let mut others = (0..self.n_pes()).filter(|&pe| pe != self.me);
        let shared = others.any(|pe| word(pe).load(Ordering::Relaxed) == processor + 1);
        self.shared_processor.store(shared, Ordering::Relaxed);
        shared
    }
}
