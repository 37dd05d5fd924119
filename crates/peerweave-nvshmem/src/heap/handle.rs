//! Counted handles of symmetric memory. Freeing uses the count to detect other handles.
//!
//! Invariant: a handle is cloned from a handle, or created by the call that allocates. If the count
//! is 1, only the owner of the single handle can create a further handle. The count of an `Arc` is
//! not sufficient, because a `Weak` can be upgraded at any time.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use peerweave_driver::Keep;

use super::allocation::Allocation;

/// Number of handles of an allocation.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicUsize);

impl Count {
    /// Returns whether at most `handles` handles exist. If so, writes made through dropped handles,
    /// such as a recorded stream, are visible to the caller.
    pub(crate) fn is_at_most(&self, handles: usize) -> bool {
        self.0.load(Ordering::Acquire) <= handles
    }
}

/// A handle of symmetric memory. The memory is not freed while a handle lives.
pub(crate) struct Handle(Arc<Allocation>);

impl Handle {
    /// Creates a handle. The caller must borrow a handle of the same memory, unless the memory is
    /// new.
    pub(crate) fn new(allocation: &Arc<Allocation>) -> Self {
        // No ordering is needed, because the caller has a handle or the memory is new.
        allocation.handles.0.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(allocation))
    }

    /// Returns a new handle for an owner that keeps the memory allocated. The handle is in a
    /// separate `Arc`: after this `Arc` is dropped, its `Weak` handles cannot be upgraded.
    pub(crate) fn keep(&self) -> Keep {
        Arc::new(self.clone())
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.handles.0.fetch_sub(1, Ordering::Release);
    }
}

impl Deref for Handle {
    type Target = Arc<Allocation>;

    fn deref(&self) -> &Arc<Allocation> {
        &self.0
    }
}
