//! Transfers that were left to the library: done some time later, at the latest when somebody asks for quiet.
//!
//! What is not here: what a transfer does (`transfer`). Invariant: they are done in the order in which they were left, one at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::world::World;

type Transfer = Box<dyn FnOnce(&World) + Send>;

/// What is still to be done.
#[derive(Default)]
pub(crate) struct Pending {
    queue: Mutex<VecDeque<Transfer>>,
}

impl Pending {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Transfer>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.queue().len()
    }
}

impl World {
    /// Leaves a transfer to later.
    pub(crate) fn leave(self: &Arc<Self>, transfer: impl FnOnce(&World) + Send + 'static) {
        let delay = crate::settings::get().nbi_delay;
        let mut queue = self.pending.queue();
        let first = queue.is_empty();
        queue.push_back(Box::new(transfer));
        drop(queue);
        if first {
            let (world, due) = (Arc::clone(self), Instant::now() + delay);
            // Nobody has to ask for quiet: a signal behind data arrives in any case.
            std::thread::spawn(move || {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                world.quiet();
            });
        }
    }

    /// Does all that was left.
    pub(crate) fn quiet(&self) {
        let mut queue = self.pending.queue();
        while let Some(transfer) = queue.pop_front() {
            // Under the lock, so that who finds nothing left knows that all is done.
            transfer(self);
        }
    }
}
