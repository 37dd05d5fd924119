//! Tables of live objects by handle. Other modules define the objects. Invariant: a handle is never
//! reused, so that the handle of a destroyed object finds nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::abi::{Code, Result};
use crate::sync::lock;

/// Number of changes of any state. A cached result is valid until this number changes.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Returns the number of changes. A caller that caches a value must call this function before
/// computing the value.
pub(crate) fn changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// Records a change of state on which the checks of calls depend.
pub(crate) fn changed() {
    CHANGES.fetch_add(1, Ordering::AcqRel);
}

/// The objects of one kind.
pub(crate) struct Table<T> {
    next: AtomicUsize,
    live: Mutex<BTreeMap<usize, Arc<T>>>,
    /// The error for a handle without a live object.
    unknown: Code,
}

impl<T> Table<T> {
    /// Creates a table whose handles differ from those of every table with another `kind`.
    pub(crate) const fn new(kind: usize, unknown: Code) -> Table<T> {
        Table { next: AtomicUsize::new((kind << 36) | 0x100), live: Mutex::new(BTreeMap::new()), unknown }
    }

    /// Returns a handle for an object that will be inserted.
    pub(crate) fn reserve(&self) -> usize {
        self.next.fetch_add(0x10, Ordering::Relaxed)
    }

    pub(crate) fn insert(&self, handle: usize, object: Arc<T>) {
        lock(&self.live).insert(handle, object);
        changed();
    }

    pub(crate) fn add(&self, object: T) -> usize {
        let handle = self.reserve();
        self.insert(handle, Arc::new(object));
        handle
    }

    pub(crate) fn get(&self, handle: usize) -> Option<Arc<T>> {
        lock(&self.live).get(&handle).cloned()
    }

    /// Returns the object, or the error for an unknown handle.
    pub(crate) fn find(&self, handle: usize) -> Result<Arc<T>> {
        self.get(handle).ok_or(self.unknown)
    }

    pub(crate) fn remove(&self, handle: usize) -> Option<Arc<T>> {
        let removed = lock(&self.live).remove(&handle);
        changed();
        removed
    }
}
