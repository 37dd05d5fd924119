//! Device memory that another library owns.

use super::StreamBackend;
use crate::Error;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The owner of device memory. The memory stays allocated while the owner lives.
///
/// The methods are called for each operation that uses the memory. Override them only for a library
/// that itself orders accesses to its memory, as cudarc does for its slices. By default, they do
/// nothing.
pub trait DeviceOwner: Any + Send + Sync + fmt::Debug {
    /// Prepares the memory for an operation that is about to be enqueued on `stream`. For example,
    /// the method makes the stream wait for earlier work on the memory. For an operation that runs
    /// on the calling thread, `stream` is `None`. In this case, earlier work on the memory must
    /// have ended when this method returns.
    ///
    /// # Errors
    /// The reason why the operation cannot use the memory. If the method fails, the operation is
    /// neither enqueued nor run.
    fn before(&self, stream: Option<&dyn StreamBackend>) -> Result<(), Error> {
        let _ = stream;
        Ok(())
    }

    /// Notifies the owner that an operation for which [`before`](Self::before) prepared the memory
    /// has been enqueued on `stream`, or that enqueuing it failed. Work that the owner later starts
    /// on the memory must wait for the operation.
    fn after(&self, stream: &dyn StreamBackend) {
        let _ = stream;
    }
}

/// A value that keeps the memory of an operation alive. Neither creating nor dropping the value
/// allocates memory. Dropping the value is not collective and does not block. The drop frees
/// memory only if no other owner of the memory is left.
///
/// The value may be dropped on any thread. If no handle of the world is left, the drop also
/// releases the backend.
#[derive(Debug)]
pub struct Keep(Owners);

#[derive(Debug)]
enum Owners {
    Few([Held; 3]),
    Many(Kept),
}

/// A handle to an owner of memory. While the handle exists, the memory stays allocated.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "the fields are never read: dropping them releases the owner of the memory")]
pub(crate) enum Held {
    Nothing,
    Memory(Arc<dyn Owner>),
    Device(Arc<dyn DeviceOwner>),
}

/// An owner of host memory or of symmetric memory. The memory stays allocated while the owner
/// lives.
pub(crate) trait Owner: Send + Sync + fmt::Debug {}

impl Keep {
    /// Returns a value that keeps no memory alive.
    pub const fn nothing() -> Self {
        Self(Owners::Few([Held::Nothing, Held::Nothing, Held::Nothing]))
    }

    #[inline]
    pub(crate) const fn few(owners: [Held; 3]) -> Self {
        Self(Owners::Few(owners))
    }

    #[inline]
    pub(crate) const fn many(owners: Kept) -> Self {
        Self(Owners::Many(owners))
    }

    /// Calls `with(owner)` for each owner of device memory. Stops at the first error.
    ///
    /// # Errors
    /// The first error that `with` returns.
    pub fn device_owners(&self, with: &mut dyn FnMut(&dyn DeviceOwner) -> Result<(), Error>) -> Result<(), Error> {
        let owners = match &self.0 {
            Owners::Few(owners) => owners.as_slice(),
            Owners::Many(owners) => owners.list(),
        };
        owners.iter().try_for_each(|held| if let Held::Device(owner) = held { with(&**owner) } else { Ok(()) })
    }
}

/// A reference-counted list of handles that keep the memory of one operation alive. The operation
/// is a group, an all-reduce with RMSNorm, or a launch. When the last clone is dropped, the handles
/// are dropped, and the empty list returns to its pool.
#[derive(Clone, Debug)]
pub(crate) struct Kept(Option<Arc<KeptList>>);

#[derive(Debug)]
struct KeptList {
    held: Vec<Held>,
    home: Weak<KeptPool>,
}

/// A pool of empty lists. [`KeptPool::take`] wraps a list in a [`Kept`]. The list returns to the
/// pool when the last clone of the `Kept` is dropped.
#[derive(Debug)]
pub(crate) struct KeptPool(Mutex<Vec<Arc<KeptList>>>);

impl KeptPool {
    /// Maximum number of empty lists in the pool. Further empty lists are freed.
    const MOST: usize = 32;

    /// Returns an empty list from the pool, or a new list if the pool is empty.
    pub(crate) fn take(self: &Arc<Self>) -> Kept {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Kept(Some(free.unwrap_or_else(|| Arc::new(KeptList { held: Vec::new(), home: Arc::downgrade(self) }))))
    }
}

impl Default for KeptPool {
    fn default() -> Self {
        // Allocates the full capacity, so that returning a list allocates nothing.
        Self(Mutex::new(Vec::with_capacity(Self::MOST)))
    }
}

impl Kept {
    /// Adds owners to the list. Panics if the list is shared with a clone of this `Kept`.
    pub(crate) fn extend(&mut self, owners: impl IntoIterator<Item = Held>) {
        let list = self.0.as_mut().and_then(Arc::get_mut).expect("the caller has the only clone of the list");
        list.held.extend(owners.into_iter().filter(|held| !matches!(held, Held::Nothing)));
    }

    /// Returns the handles in the list. Each handle keeps memory of the operation allocated.
    pub(crate) fn list(&self) -> &[Held] {
        self.0.as_ref().map_or(&[], |list| &list.held)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let Some(mut list) = self.0.take() else { return };
        let Some(last) = Arc::get_mut(&mut list) else { return };
        let home = last.home.upgrade();
        last.held.clear();
        if let Some(home) = home {
            let mut free = home.0.lock().unwrap_or_else(PoisonError::into_inner);
            if free.len() < KeptPool::MOST {
                free.push(list);
            }
        }
    }
}
