//! Counted handles of symmetric memory, by which freeing detects whether others exist.
//!
//! Invariant: a handle is cloned from a handle, or created by the call that allocates. So if the
//! count is one, only the owner of that handle can create another. The count of an `Arc` is not
//! sufficient, because a `Weak` can be upgraded at any time.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use peerweave_driver::Keep;

use super::allocation::Allocation;

/// Number of handles.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicUsize);

impl Count {
    /// Returns whether there are at most `handles`. Effects of dropped handles, such as a recorded
    /// stream, are visible to the caller.
    pub(crate) fn is_at_most(&self, handles: usize) -> bool {
        self.0.load(Ordering::Acquire) <= handles
    }
}

/// A handle of symmetric memory. The memory is not freed while it lives.
pub(crate) struct Handle(Arc<Allocation>);

impl Handle {
    /// Creates a handle. Call this only while another handle is borrowed, or for new memory.
    pub(crate) fn new(allocation: &Arc<Allocation>) -> Self {
        // The caller has a handle, or the memory is new: no ordering is needed.
        allocation.handles.0.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(allocation))
    }

    /// Returns a separate handle for an owner that keeps the memory. A `Weak` of it cannot be
    /// upgraded after it is dropped.
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
