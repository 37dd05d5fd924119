//! The gate of a lock. A thread enters the gate before it acquires the lock. It leaves the gate
//! when it has released the lock or has failed to acquire it. Only one thread of this PE at a time
//! can be in the gate.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Gate {
    is_taken: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, bool> {
        // No code that holds the mutex panics.
        self.is_taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread of this PE is in the gate, then enters the gate. Waits at most
    /// until `end`. Returns whether this thread has entered.
    pub(super) fn enter(&self, end: Instant) -> bool {
        let mut is_taken = self.state();
        while *is_taken {
            let Some(rest) = end.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) else { return false };
            is_taken = self.changed.wait_timeout(is_taken, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        *is_taken = true;
        true
    }

    pub(super) fn leave(&self) {
        *self.state() = false;
        self.changed.notify_one();
    }
}
