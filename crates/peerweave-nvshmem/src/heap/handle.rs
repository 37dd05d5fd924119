//! Handles of symmetric memory, counted, so that freeing knows whether somebody has one.
//!
//! Invariant: a handle is made of a handle, or by the call that allocates. So once the count has
//! come to one, or none, only the owner of that one can make another. `Arc`'s own count says less:
//! of a `Weak` somebody makes a handle at any time.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use peerweave_driver::Keep;

use super::allocation::Allocation;

/// How many handles there are.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicUsize);

impl Count {
    /// Whether there are no more than so many. What was done with the others, such as noting a
    /// stream, is seen by the caller.
    pub(crate) fn is_at_most(&self, handles: usize) -> bool {
        self.0.load(Ordering::Acquire) <= handles
    }
}

/// Symmetric memory in somebody's hand: it is not freed meanwhile.
pub(crate) struct Handle(Arc<Allocation>);

impl Handle {
    /// To be called where a handle is borrowed, or where the memory has just been made.
    pub(crate) fn new(allocation: &Arc<Allocation>) -> Self {
        // Whoever makes a handle has one, or nobody knows of the memory yet: there is nothing to be
        // ordered.
        allocation.handles.0.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(allocation))
    }

    /// A handle of its own for whatever keeps the memory. A `Weak` of it is worth as much as it:
    /// nothing, once that one is dropped.
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
