//! The state that all handles of a world share: the backend, whether the world has ended, and the
//! live allocations.
//!
//! Invariant: every handle holds an `Arc` of this state, so the backend and its symmetric heap
//! outlive all handles.

use crate::Result;
use crate::backend::error::{Error, MisuseKind, misuse};
use crate::backend::{AbortWord, Backend, PrivateBuffers};
use crate::pools::Pools;
use peerweave_fork::ForkGuard;
use peerweave_types::{Pe, SymOffset};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// The values of [`Shared::end`].
mod end {
    /// The world has not ended.
    pub(super) const NONE: u8 = 0;
    /// A call of `World::finalize` has ended the world.
    pub(super) const FINALIZED: u8 = 1;
    /// A call of `World::shrink` has ended the world, and has created a world that replaces it.
    pub(super) const SHRUNK: u8 = 2;
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) my_pe: Pe,
    pub(crate) n_pes: usize,
    pub(crate) deadline: Duration,
    /// Whether the backend refuses operations on ordinary (private) memory, which is not symmetric.
    pub(crate) private_refused: bool,
    /// The ordinal of the device whose memory can be passed to operations; `None` if operations
    /// accept no device memory.
    pub(crate) device: Option<u32>,
    guard: ForkGuard,
    aborted: AbortWord,
    /// The state of the world: [`end::NONE`] until the world ends, then [`end::FINALIZED`] or
    /// [`end::SHRUNK`].
    end: AtomicU8,
    /// A lock that a thread holds while it shrinks the world.
    pub(crate) shrinking: Mutex<()>,
    allocations: Mutex<Allocations>,
    pub(crate) pools: Pools,
}

#[derive(Debug, Default)]
struct Allocations {
    next: u64,
    live: BTreeMap<u64, LeakedBuffer>,
    /// The allocations of more than 0 bytes. The key is the offset at which the allocation starts.
    places: BTreeMap<u64, Placed>,
}

/// An allocation of more than 0 bytes in symmetric memory.
#[derive(Debug)]
struct Placed {
    end: u64,
    number: u64,
    /// A weak reference to the `Region` of this allocation, an object that all handles to the
    /// allocation share. The `Region` is dropped with the last handle.
    handles: Weak<dyn Any + Send + Sync>,
}

impl Allocations {
    /// Returns the allocation that contains the `bytes` bytes at `at`, and the offset at which the
    /// allocation starts. Returns `None` if no allocation contains all of these bytes.
    fn containing(&mut self, at: SymOffset, bytes: u64) -> Option<(u64, &mut Placed)> {
        let end = at.0.checked_add(bytes)?;
        let (&start, placed) = self.places.range_mut(..=at.0).next_back()?;
        (end <= placed.end).then_some((start, placed))
    }
}

impl Shared {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        let job = backend.job();
        Self {
            my_pe: job.my_pe,
            n_pes: job.n_pes,
            deadline: backend.deadline(),
            private_refused: backend.caps().private_buffers == PrivateBuffers::Refused,
            device: backend.caps().device,
            guard: ForkGuard::new(),
            aborted: backend.abort_word(),
            end: AtomicU8::new(end::NONE),
            shrinking: Mutex::default(),
            allocations: Mutex::default(),
            pools: Pools::default(),
            backend,
        }
    }

    /// Checks that the world has neither ended nor been aborted, and that this process created the
    /// world.
    #[inline]
    pub(crate) fn usable(&self, call: &'static str) -> Result<()> {
        if self.end.load(Ordering::Acquire) != end::NONE || self.aborted.is_set() || self.is_forked() {
            return Err(self.unusable(call));
        }
        Ok(())
    }

    /// Checks that this PE may access its own copy of symmetric memory. Like [`Shared::usable`],
    /// but also succeeds after a shrink has replaced the world.
    #[inline]
    pub(crate) fn usable_locally(&self, call: &'static str) -> Result<()> {
        if self.end.load(Ordering::Acquire) == end::FINALIZED || self.aborted.is_set() || self.is_forked() {
            return Err(self.unusable(call));
        }
        Ok(())
    }

    /// Returns whether this process was forked from the process that created the world. In a forked
    /// process, the memory of the backend is not mapped.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.guard.is_forked()
    }

    /// Returns the fork guard of the world. A handle that may outlive this state uses the guard to
    /// check whether its process is a forked child.
    #[inline]
    pub(crate) fn guard(&self) -> ForkGuard {
        self.guard
    }

    #[cold]
    #[inline(never)]
    fn unusable(&self, call: &'static str) -> Error {
        match self.aborted.error() {
            _ if self.is_forked() => misuse(call, MisuseKind::Forked),
            Some(aborted) => aborted,
            None if self.end.load(Ordering::Acquire) == end::SHRUNK => misuse(call, MisuseKind::Shrunk),
            None => misuse(call, MisuseKind::Finalized),
        }
    }

    /// Checks that a handle belongs to this world. `theirs` is the world of the handle, and `what`
    /// is the kind of handle: "stream" or "event".
    #[inline(always)]
    pub(crate) fn same_world(self: &Arc<Self>, call: &'static str, theirs: &Arc<Self>, what: &'static str) -> Result<()> {
        if Arc::ptr_eq(self, theirs) { Ok(()) } else { Err(misuse(call, MisuseKind::ForeignQueue { what })) }
    }

    /// Ends the world, so that every later call fails. Fails if the world has already ended.
    pub(crate) fn finalize(&self, call: &'static str) -> Result<()> {
        self.replace_end(call, end::FINALIZED)
    }

    /// Ends the world because of a shrink. Later calls succeed only if they access only this PE's
    /// own memory. Fails if the world has already ended.
    pub(crate) fn shrink(&self, call: &'static str) -> Result<()> {
        self.replace_end(call, end::SHRUNK)
    }

    fn replace_end(&self, call: &'static str, end: u8) -> Result<()> {
        let set = self.end.compare_exchange(end::NONE, end, Ordering::AcqRel, Ordering::Acquire);
        set.map(drop).map_err(|_| self.unusable(call))
    }

    pub(crate) fn enter(&self, buffer: LeakedBuffer, at: SymOffset) -> u64 {
        let mut allocations = self.allocations();
        let number = allocations.next;
        allocations.next += 1;
        if buffer.bytes > 0 {
            let handles: Weak<dyn Any + Send + Sync> = Weak::<()>::new();
            allocations.places.insert(at.0, Placed { end: at.0 + buffer.bytes as u64, number, handles });
        }
        allocations.live.insert(number, buffer);
        number
    }

    /// Stores `handles`, a weak reference to the `Region` of the allocation that starts at `at`. A
    /// `Region` is an object that all handles to an allocation share. [`Shared::region_at`] returns
    /// the `Region`.
    pub(crate) fn share(&self, at: SymOffset, handles: Weak<dyn Any + Send + Sync>) {
        if let Some(placed) = self.allocations().places.get_mut(&at.0) {
            placed.handles = handles;
        }
    }

    /// Returns the `Region` of the allocation that contains the `bytes` bytes at `at`: the object
    /// that all handles to the allocation share. If all handles were dropped, `make` creates a new
    /// `Region` from the number, the start and the size of the allocation. Returns `None` if no
    /// allocation contains all of the bytes.
    pub(crate) fn region_at<R: Any + Send + Sync>(
        &self,
        at: SymOffset,
        bytes: u64,
        make: impl FnOnce(u64, SymOffset, usize) -> R,
    ) -> Option<Arc<R>> {
        let mut allocations = self.allocations();
        let (start, placed) = allocations.containing(at, bytes)?;
        // This code holds the lock of the table, so it must not drop a handle: the destructor of
        // the last handle acquires the same lock.
        if let Some(handles) = placed.handles.upgrade() {
            return handles.downcast().ok();
        }
        let made = Arc::new(make(placed.number, SymOffset(start), (placed.end - start) as usize));
        placed.handles = Arc::<R>::downgrade(&made);
        let number = placed.number;
        if let Some(buffer) = allocations.live.get_mut(&number) {
            buffer.dropped = false;
        }
        Some(made)
    }

    /// Records that the last handle to an allocation has been dropped. `number` identifies the
    /// allocation, which starts at offset `at`.
    pub(crate) fn note_dropped(&self, number: u64, at: SymOffset) {
        let mut allocations = self.allocations();
        // `region_at` may have made a new handle after the reference count became zero.
        let found = allocations.places.get(&at.0);
        let in_use = found.is_some_and(|placed| placed.number == number && placed.handles.strong_count() > 0);
        if let Some(buffer) = allocations.live.get_mut(&number) {
            buffer.dropped = !in_use;
        }
    }

    pub(crate) fn remove(&self, number: u64, at: SymOffset) {
        let mut allocations = self.allocations();
        allocations.live.remove(&number);
        // Another thread may have allocated memory at the same offset already.
        if allocations.places.get(&at.0).is_some_and(|placed| placed.number == number) {
            allocations.places.remove(&at.0);
        }
    }

    /// Returns the offset at which some allocation of more than 0 bytes starts. The choice of the
    /// allocation is arbitrary. Returns `None` if there is no such allocation.
    pub(crate) fn any_allocation(&self) -> Option<SymOffset> {
        self.allocations().places.keys().next().copied().map(SymOffset)
    }

    /// Returns whether the `bytes` bytes at `at` lie in one allocation that has not been released.
    pub(crate) fn is_allocated(&self, at: SymOffset, bytes: u64) -> bool {
        self.allocations().containing(at, bytes).is_some()
    }

    pub(crate) fn report(&self) -> FinalizeReport {
        FinalizeReport { leaked: self.allocations().live.values().cloned().collect() }
    }

    fn allocations(&self) -> MutexGuard<'_, Allocations> {
        // A change of the table is made completely or not at all, even if a thread panics.
        self.allocations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The report of [`World::finalize`](crate::World::finalize): the symmetric buffers that the
/// program had not released.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "the report lists the symmetric buffers that were not released: check `is_clean`"]
#[non_exhaustive]
pub struct FinalizeReport {
    /// The symmetric buffers that the program had not released when the world was finalized. The
    /// buffers are in the order in which they were allocated.
    pub leaked: Vec<LeakedBuffer>,
}

impl FinalizeReport {
    /// Returns whether the program had released every symmetric buffer when the world was
    /// finalized.
    pub fn is_clean(&self) -> bool {
        self.leaked.is_empty()
    }
}

impl fmt::Display for FinalizeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return f.write_str("every symmetric buffer was released");
        }
        let count = self.leaked.len();
        write!(f, "symmetric buffers not released: {count}")?;
        self.leaked.iter().try_for_each(|buffer| write!(f, "\n  {buffer}"))
    }
}

/// A symmetric buffer that had not been released when its world was finalized.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeakedBuffer {
    /// The number of elements in the buffer.
    pub elements: usize,
    /// The name of the element type.
    pub type_name: &'static str,
    /// The size of the buffer, in bytes.
    pub bytes: usize,
    /// The source location of the call that allocated the buffer.
    pub allocated_at: &'static Location<'static>,
    /// Whether the program had dropped all handles to the buffer when the world was finalized.
    pub dropped: bool,
}

impl fmt::Display for LeakedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.dropped { "dropped without release" } else { "still alive" };
        let Self { elements, type_name, bytes, allocated_at, .. } = self;
        write!(f, "{elements} × {type_name} ({bytes} bytes) allocated at {allocated_at}: {state}")
    }
}
