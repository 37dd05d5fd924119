//! Counted handles to symmetric memory. Memory can be freed only if the caller's handle is the only
//! handle.
//!
//! Invariant: the call that allocates creates the first handle. Every other handle is a clone of an
//! existing handle. If the count is 1, only the owner of the single handle can therefore create a
//! further handle. The count of an `Arc` would not be sufficient, because a `Weak` can be upgraded
//! at any time.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use peerweave_driver::Keep;

use super::allocation::Allocation;

/// Number of existing [`Handle`]s of an allocation.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicUsize);

impl Count {
    /// Returns whether at most `handles` handles exist. If the result is `true`, the caller sees
    /// all writes that were made through other handles before these handles were dropped. An
    /// example of such a write is the record of a stream that uses the memory.
    pub(crate) fn is_at_most(&self, handles: usize) -> bool {
        self.0.load(Ordering::Acquire) <= handles
    }
}

/// A handle of symmetric memory. The memory is not freed while a handle lives.
pub(crate) struct Handle(Arc<Allocation>);

impl Handle {
    /// Creates a handle. Unless the memory is new, the caller must hold another handle to the same
    /// memory during this call.
    pub(crate) fn new(allocation: &Arc<Allocation>) -> Self {
        // No ordering is needed, because the caller has a handle or the memory is new.
        allocation.handles.0.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(allocation))
    }

    /// Returns an owner that keeps the memory from being freed: an `Arc` around another handle. A
    /// `Weak` of this `Arc` does not break the module's invariant, because it cannot be upgraded
    /// once the handle has been dropped.
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
