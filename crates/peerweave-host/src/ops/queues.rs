//! All streams of a PE: the operations in their queues, and the failures that no call has returned
//! yet.

use peerweave_core::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Maximum number of failures that are kept until a call returns them. Later failures are probably
/// consequences of the kept failures.
const KEPT_FAILURES: usize = 64;

/// The failure of a queued operation, which has failed or has been skipped because an earlier
/// operation failed. The failures of skipped operations share the `reported` flag of the earlier
/// failure. If a call returns one of these failures, all of them count as reported.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// Whether any call on a ticket, an event or a stream has already returned this failure to the
    /// program.
    reported: Arc<AtomicBool>,
}

impl Failure {
    /// Creates the record of a failed operation. `error` is the error of the operation. At first,
    /// the failure is not marked as reported.
    pub(crate) fn new(error: Error) -> Self {
        Self { error, reported: Arc::default() }
    }

    /// Creates the failure of an operation that was skipped because an earlier operation failed.
    /// `self` is the failure of the earlier operation, and `error` is the error of the skipped
    /// operation. Both failures share one `reported` flag. So after a call has returned one of
    /// them, both are marked as reported.
    pub(crate) fn followed_by(&self, error: Error) -> Self {
        Self { error, reported: Arc::clone(&self.reported) }
    }

    /// Returns the error, and marks the failure as reported.
    pub(crate) fn report(&self) -> Error {
        self.reported.store(true, Ordering::Release);
        self.error.clone()
    }

    fn is_reported(&self) -> bool {
        self.reported.load(Ordering::Acquire)
    }
}

/// One queue of operations.
pub(crate) trait Queue: fmt::Debug + Send + Sync {
    /// Returns the name of the call that the queue is running or will run next. Returns `None` if
    /// the queue is empty.
    fn pending_call(&self) -> Option<&'static str>;
}

/// All queues of operations on this PE, and the failures that no call has returned yet.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// Total number of operations in all queues.
    pub(crate) queued: AtomicUsize,
    all: Mutex<Vec<Weak<dyn Queue>>>,
    unreported: Mutex<Vec<Failure>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that holds one of these locks panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queues {
    /// Stores a weak reference to a queue. Removes the references to queues that have been dropped.
    pub(crate) fn add(&self, queue: Weak<dyn Queue>) {
        let mut all = lock(&self.all);
        all.retain(|queue| queue.strong_count() > 0);
        all.push(queue);
    }

    /// Records the failure of an operation, so that a later call can return it. This is necessary
    /// because the program may have dropped the ticket of the operation.
    pub(crate) fn note(&self, failure: Failure) {
        let mut unreported = lock(&self.unreported);
        unreported.retain(|failure| !failure.is_reported());
        if unreported.len() < KEPT_FAILURES {
            unreported.push(failure);
        }
    }

    /// Removes all recorded failures. Returns the error of the first failure that no call has
    /// returned yet.
    pub(crate) fn take_unreported(&self) -> Option<Error> {
        let all = std::mem::take(&mut *lock(&self.unreported));
        all.into_iter().find(|failure| !failure.is_reported()).map(|failure| failure.report())
    }

    /// Returns the name of a call that one of the queues is running or will run next. Returns
    /// `None` if all queues are empty.
    pub(crate) fn pending_call(&self) -> Option<&'static str> {
        let all: Vec<_> = lock(&self.all).iter().filter_map(Weak::upgrade).collect();
        all.iter().find_map(|queue| queue.pending_call())
    }
}
