//! Transfers that are on internal streams or that the host has sent over the network. They complete
//! some time after the call, at the latest at a quiet.
//!
//! Module `transfers` moves the data. Invariants: transfers of one queue run in order, one at a
//! time. A quiet on a stream does not complete transfers that the host has sent, because those use
//! other queues of the network.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

type Transfer = Box<dyn FnOnce() + Send>;

/// A queue of pending transfers.
#[derive(Clone)]
pub(crate) struct Pending {
    /// Maximum delay of a transfer.
    delay: Duration,
    queue: Arc<Mutex<VecDeque<Transfer>>>,
}

impl Pending {
    pub(crate) fn new(delay: Duration) -> Self {
        Self { delay, queue: Arc::default() }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Transfer>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a transfer that runs later.
    pub(crate) fn add(&self, transfer: impl FnOnce() + Send + 'static) {
        let mut queue = self.queue();
        let first = queue.is_empty();
        queue.push_back(Box::new(transfer));
        drop(queue);
        if first {
            let (pending, due) = (self.clone(), Instant::now() + self.delay);
            // The transfer completes without a quiet, because a signal after data must arrive in
            // any case.
            std::thread::spawn(move || {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                pending.complete();
            });
        }
    }

    /// Runs all pending transfers.
    pub(crate) fn complete(&self) {
        let mut queue = self.queue();
        while let Some(transfer) = queue.pop_front() {
            // The transfer runs under the lock, so that a thread that finds an empty queue knows
            // that all transfers are complete.
            transfer();
        }
    }

    /// Returns the number of pending transfers.
    pub(crate) fn count(&self) -> usize {
        self.queue().len()
    }
}
