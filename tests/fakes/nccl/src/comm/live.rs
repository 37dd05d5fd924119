//! The communicators whose handles are valid.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::communicator::Comm;

static LIVE: Mutex<Vec<&'static Comm>> = Mutex::new(Vec::new());

fn live_list() -> MutexGuard<'static, Vec<&'static Comm>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns every communicator whose handle is valid.
pub(crate) fn live() -> Vec<&'static Comm> {
    live_list().clone()
}

/// Adds a new communicator.
pub(super) fn add(comm: &'static Comm) {
    live_list().push(comm);
}

/// Removes a communicator whose handle is no longer valid.
pub(super) fn remove(comm: &'static Comm) {
    live_list().retain(|other| !std::ptr::eq(*other, comm));
}
