//! Locks whose values stay valid when a thread panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also after a thread that held it has panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is complete before code can panic, so a poisoned lock still protects valid
    // values.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
