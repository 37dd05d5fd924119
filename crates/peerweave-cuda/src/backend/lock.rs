//! Locks a mutex even if a thread has panicked while it held the lock. The value of such a mutex is
//! still valid.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if a thread has panicked while holding the mutex.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is complete before code can panic, so a poisoned lock still protects valid
    // values.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
