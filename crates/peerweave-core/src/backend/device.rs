//! Device memory that another library owns.

use super::StreamBackend;
use crate::Error;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The owner of device memory. The memory stays allocated while the owner lives.
///
/// A library that orders the uses of its memory by itself, such as cudarc for its slices, is
/// notified of each operation that uses the memory.
pub trait DeviceOwner: Any + Send + Sync + fmt::Debug {
    /// Prepares the memory for an operation that is about to be enqueued on `stream`, for example
    /// by making the stream wait for earlier work on the memory. For an operation without a stream,
    /// which runs on the calling thread, `stream` is `None`: earlier work must then have ended when
    /// this returns.
    ///
    /// # Errors
    /// The reason why the operation cannot use the memory. The operation is then not enqueued.
    fn before(&self, stream: Option<&dyn StreamBackend>) -> Result<(), Error> {
        let _ = stream;
        Ok(())
    }

    /// Called after the operation was enqueued on `stream`, or could not be enqueued. Later work of
    /// the owner on the memory must wait for the operation.
    fn after(&self, stream: &dyn StreamBackend) {
        let _ = stream;
    }
}

/// Keeps memory alive while an operation uses it. Dropping the value is local and does not block.
/// The drop may release the last handle of the world, and with it the backend, on any thread.
/// Creating and dropping the value allocates no memory; a drop frees only memory of which this
/// value was the last owner.
#[derive(Debug)]
pub struct Keep(Owners);

#[derive(Debug)]
enum Owners {
    Few([Held; 3]),
    Many(Kept),
}

/// One owner of memory. It is held only to be dropped later.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "held for its drop")]
pub(crate) enum Held {
    Nothing,
    Memory(Arc<dyn Owner>),
    Device(Arc<dyn DeviceOwner>),
}

/// An owner of memory of the host, or of symmetric memory.
pub(crate) trait Owner: Send + Sync + fmt::Debug {}

impl Keep {
    /// Returns a value that keeps nothing alive.
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

    /// Calls `with` for each owner of device memory, until a call fails.
    ///
    /// # Errors
    /// The first error of `with`.
    pub fn device_owners(&self, with: &mut dyn FnMut(&dyn DeviceOwner) -> Result<(), Error>) -> Result<(), Error> {
        let owners = match &self.0 {
            Owners::Few(owners) => owners.as_slice(),
            Owners::Many(owners) => owners.list(),
        };
        owners.iter().try_for_each(|held| if let Held::Device(owner) = held { with(&**owner) } else { Ok(()) })
    }
}

/// Owners of the memory of a group. A clone is a handle of the same list. When the last handle is
/// dropped, so are the owners, and the empty list returns to its pool.
#[derive(Clone, Debug)]
pub(crate) struct Kept(Option<Arc<KeptList>>);

#[derive(Debug)]
struct KeptList {
    held: Vec<Held>,
    home: Weak<KeptPool>,
}

/// Empty lists of owners.
#[derive(Debug)]
pub(crate) struct KeptPool(Mutex<Vec<Arc<KeptList>>>);

impl KeptPool {
    /// Maximum number of lists that the pool keeps.
    const MOST: usize = 32;

    /// Returns an empty list.
    pub(crate) fn take(self: &Arc<Self>) -> Kept {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Kept(Some(free.unwrap_or_else(|| Arc::new(KeptList { held: Vec::new(), home: Arc::downgrade(self) }))))
    }
}

impl Default for KeptPool {
    fn default() -> Self {
        // With all its room, so that the return of a list allocates nothing.
        Self(Mutex::new(Vec::with_capacity(Self::MOST)))
    }
}

impl Kept {
    /// Adds owners, before the list has another handle.
    pub(crate) fn extend(&mut self, owners: impl IntoIterator<Item = Held>) {
        let list = self.0.as_mut().and_then(Arc::get_mut).expect("the list has one handle");
        list.held.extend(owners.into_iter().filter(|held| !matches!(held, Held::Nothing)));
    }

    fn list(&self) -> &[Held] {
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
