//! Transfers on internal streams, or sent by the host over the network: they complete some time
//! later, at the latest at a quiet.
//!
//! `transfer` moves the data. Invariant: transfers of one queue run in order, one at a time; work
//! on a stream does not complete transfers that the host has sent, because its quiet refers to
//! other queues of the network.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::world::World;

type Transfer = Box<dyn FnOnce(&World) + Send>;

/// The pending transfers.
#[derive(Default)]
pub(crate) struct Pending {
    queue: Mutex<VecDeque<Transfer>>,
}

impl Pending {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Transfer>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complete(&self, world: &World) {
        let mut queue = self.queue();
        while let Some(transfer) = queue.pop_front() {
            // Runs under the lock, so that a thread that finds no pending transfer knows that all
            // are complete.
            transfer(world);
        }
    }

    /// Returns the number of pending transfers.
    pub(crate) fn count(&self) -> usize {
        self.queue().len()
    }
}

impl World {
    /// Adds a transfer that runs later.
    pub(crate) fn leave(self: &Arc<Self>, transfer: impl FnOnce(&World) + Send + 'static) {
        self.later(|world| &world.pending, crate::settings::get().nbi_delay, Box::new(transfer));
    }

    /// Sends a transfer from the host over the network: the call returns before it has arrived.
    pub(crate) fn send(self: &Arc<Self>, transfer: impl FnOnce(&World) + Send + 'static) {
        self.later(|world| &world.sent, crate::settings::get().network_delay, Box::new(transfer));
    }

    fn later(self: &Arc<Self>, which: fn(&Self) -> &Pending, delay: Duration, transfer: Transfer) {
        let mut queue = which(self).queue();
        let first = queue.is_empty();
        queue.push_back(transfer);
        drop(queue);
        if first {
            let (world, due) = (Arc::clone(self), Instant::now() + delay);
            // The transfer completes without a quiet, because a signal after data must arrive in
            // any case.
            std::thread::spawn(move || {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                which(&world).complete(&world);
            });
        }
    }

    /// Runs all pending transfers.
    pub(crate) fn quiet(&self) {
        self.pending.complete(self);
    }

    /// Runs all pending transfers, including those that the host has sent.
    pub(crate) fn quiet_of_host(&self) {
        self.sent.complete(self);
        self.quiet();
    }
}
