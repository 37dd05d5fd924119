//! The ranks of one communicator in one process: which of them are behind, and whether another
//! thread can still issue their calls.
//!
//! A thread that has several ranks issues their calls in one group. If it omits one, it waits for a
//! call that only it can issue, and NCCL never notices. Other processes are checked in `wait.rs`.
//!
//! Invariant: this only reads; a call pays for it with one store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::library::error::{MisuseKind, NcclError, RankReport};
use crate::member::membership::{self, Inner};
use crate::member::threads::this_thread;

/// How often the other ranks of the process are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Half of a shorter deadline than twice this says nothing: threads are late by as much.
const AT_LEAST: Duration = Duration::from_millis(500);

/// How long a thread that has issued the call for several ranks waits for one that it left out.
const LEFT_OUT_AFTER: Duration = Duration::from_secs(1);

/// The other ranks of a communicator in this process.
fn siblings(inner: &Arc<Inner>) -> Vec<Arc<Inner>> {
    let mut all = membership::all();
    all.retain(|other| other.identity == inner.identity && !Arc::ptr_eq(other, inner) && !other.gate.is_closed());
    all
}

/// All ranks of a communicator in this process, this one among them.
pub(crate) fn of_process(inner: &Arc<Inner>) -> Vec<Arc<Inner>> {
    let mut all = siblings(inner);
    all.push(Arc::clone(inner));
    all
}

/// Where the other ranks of this process are, as they would report it.
pub(crate) fn reports(inner: &Arc<Inner>) -> Vec<RankReport> {
    let report = |other: &Arc<Inner>| {
        let (sequence, call) = other.last();
        RankReport { rank: other.rank, sequence, call: call.to_owned() }
    };
    siblings(inner).iter().map(report).collect()
}

/// Looks, while a thread waits for a call, whether it has left out a rank that only it could bring.
pub(crate) struct LeftOut {
    thread: u64,
    next: Instant,
    /// When the rank is not expected any more: sooner where the thread is known to issue several
    /// ranks.
    patience: Duration,
}

impl LeftOut {
    /// For a wait of this thread that lasts at most so long.
    pub(crate) fn new(deadline: Duration) -> Self {
        Self::by_thread(this_thread(), deadline)
    }

    /// As [`new`](Self::new), for a wait of the thread with this number.
    pub(crate) fn by_thread(thread: u64, deadline: Duration) -> Self {
        Self { thread, next: Instant::now() + LOOK_EVERY, patience: (deadline / 2).max(AT_LEAST) }
    }

    /// An error if the thread that issued the last call on the communicator, or waits for it, has
    /// left out a rank.
    ///
    /// A rank counts as left out if it has fewer collectives, and no other thread than this one has
    /// made or used it. Its handle may have gone to another thread that has not called yet: so this
    /// waits for half of the deadline, and not less than half a second; or for a second, if this
    /// thread has issued this collective for another rank too.
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
