//! Finds all ranks that a communicator has in this process. Detects a waiting thread that has
//! omitted one of its own ranks from a group.
//!
//! A thread with several ranks of one communicator issues the calls of all these ranks in one
//! group. If the thread omits a rank, the thread waits for a call that only the thread itself can
//! issue. NCCL never detects this error. `wait.rs` detects missing ranks of other processes.
//!
//! Invariant: this module only reads shared state. One part of this state is the number of the
//! thread that made the last call on a rank.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::library::error::{MisuseKind, NcclError, RankReport};
use crate::member::membership::{self, Inner};
use crate::member::threads::this_thread;

/// Interval at which a waiting thread is checked for omitted ranks. A rank is omitted if it belongs
/// to the thread, and the thread has not issued the awaited collective for it.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Minimum time that a thread waits before it reports an omitted rank, even if the deadline is
/// short. During this time, another thread may still issue the collective for the rank.
const AT_LEAST: Duration = Duration::from_millis(500);

/// Maximum time that a thread waits before it reports an omitted rank. This maximum applies only if
/// the thread has issued the awaited collective for at least two ranks.
const LEFT_OUT_AFTER: Duration = Duration::from_secs(1);

/// Returns the siblings of `inner`: the other ranks of the same communicator in this process.
/// Leaves out ranks that have been finalized or aborted.
fn siblings(inner: &Arc<Inner>) -> Vec<Arc<Inner>> {
    let mut all = membership::all();
    all.retain(|other| other.identity == inner.identity && !Arc::ptr_eq(other, inner) && !other.gate.is_closed());
    all
}

/// Returns `inner` and its siblings: all ranks of the same communicator in this process. Leaves out
/// siblings that have been finalized or aborted.
pub(crate) fn of_process(inner: &Arc<Inner>) -> Vec<Arc<Inner>> {
    let mut all = siblings(inner);
    all.push(Arc::clone(inner));
    all
}

/// Returns one report for each sibling of `inner` (the other ranks of the same communicator in this
/// process). A report contains the number and the name of the last call on the sibling. Leaves out
/// siblings that have been finalized or aborted.
pub(crate) fn reports(inner: &Arc<Inner>) -> Vec<RankReport> {
    let report = |other: &Arc<Inner>| {
        let (sequence, call) = other.last();
        RankReport { rank: other.rank, sequence, call: call.to_owned() }
    };
    siblings(inner).iter().map(report).collect()
}

/// The state of a check during one wait. The check is repeated at intervals. It finds ranks of the
/// waiting thread that this thread has omitted from a group.
pub(crate) struct LeftOut {
    /// Number that identifies the waiting thread. Each thread of the process has a different
    /// number.
    thread: u64,
    /// Time at which the check is repeated next.
    next: Instant,
    /// Minimum waiting time before [`LeftOut::look`] reports an omitted rank. If the waiting thread
    /// has issued the awaited collective for several ranks, the minimum is at most
    /// [`LEFT_OUT_AFTER`].
    patience: Duration,
}

impl LeftOut {
    /// Creates the state for one wait of the calling thread. `deadline` is the time limit of the
    /// wait. During the wait, [`look`](Self::look) detects omitted ranks: ranks of this thread for
    /// which the thread has not issued the awaited collective.
    pub(crate) fn new(deadline: Duration) -> Self {
        Self::by_thread(this_thread(), deadline)
    }

    /// Like [`new`](Self::new), but for a wait of the thread with the number `thread`, which need
    /// not be the calling thread.
    pub(crate) fn by_thread(thread: u64, deadline: Duration) -> Self {
        Self { thread, next: Instant::now() + LOOK_EVERY, patience: (deadline / 2).max(AT_LEAST) }
    }

    /// Fails if the waiting thread has omitted one of its ranks from a group. The wait on the rank
    /// `inner` would then never end.
    ///
    /// A sibling of `inner` (another rank of the same communicator in this process) counts as
    /// omitted under two conditions:
    /// - The sibling has issued fewer collectives than `inner`.
    /// - The sibling belongs to the waiting thread: the thread issued the sibling's last call, or
    ///   created the sibling if the sibling has no calls.
    ///
    /// The program may have passed the sibling's handle to another thread that has not made a call
    /// yet. So the check never fails during the first half of the deadline, nor during the first
    /// half second. If the waiting thread has issued the collective for at least two ranks, this
    /// period lasts at most one second.
    ///
    /// # Errors
    /// [`MisuseKind::NotInGroup`].
    pub(crate) fn look(&mut self, call: &'static str, inner: &Arc<Inner>, waited: Duration) -> Result<(), NcclError> {
        if Instant::now() < self.next {
            return Ok(());
        }
        self.next = Instant::now() + LOOK_EVERY;
        let (thread, reached) = (self.thread, inner.collectives());
        let mine: Vec<_> = siblings(inner).into_iter().filter(|other| other.last_thread() == thread).collect();
        let mut ranks: Vec<_> = mine.iter().filter(|other| other.collectives() < reached).map(|other| other.rank).collect();
        let drives_several = mine.len() > ranks.len();
        let patience = if drives_several { LEFT_OUT_AFTER.min(self.patience) } else { self.patience };
        if ranks.is_empty() || waited < patience {
            return Ok(());
        }
        ranks.sort_unstable();
        let (sequence, last) = inner.last();
        let call = if last.is_empty() { call } else { last };
        let kind = MisuseKind::NotInGroup { ranks, sequence, communicator: Arc::clone(&inner.name) };
        Err(NcclError::misuse(call, kind))
    }
}
