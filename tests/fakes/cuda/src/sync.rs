//! Locks and waits that still work after a holder of the lock has panicked.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if it is poisoned.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits while the condition holds.
pub(crate) fn wait_while<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    condition: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    changed.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
}
