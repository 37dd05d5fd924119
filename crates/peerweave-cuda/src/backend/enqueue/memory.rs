//! The memory that an operation uses: symmetric memory, memory of the host, and temporary memory.

use std::sync::Arc;

use peerweave_core::Error;
use peerweave_core::backend::Place;
use peerweave_driver::{DeviceBuffer as _, DeviceMemory};
use peerweave_types::{SymOffset, SymSlice};

use super::{Enqueue, Source};
use crate::backend::error::{driver, unsupported};
use crate::backend::resources::{Copier, Pinned, Slot, Staged, class_of};

impl Enqueue<'_> {
    /// Records that the operation uses a range of symmetric memory. During a capture, the graph
    /// then keeps this memory allocated. Outside of a capture, no record is needed: each stream
    /// keeps the heap alive, and a release of symmetric memory waits for the work of all streams.
    pub(crate) fn note(&mut self, at: SymOffset, bytes: usize) {
        if self.capturing
            && let Some(block) = self.gpu.0.allocation(at, bytes as u64)
        {
            self.keep.extend(block.keep());
        }
    }

    fn note_place(&mut self, place: Place, bytes: usize) {
        if let Place::Symmetric(at) = place {
            self.note(at, bytes);
        }
    }

    pub(crate) fn slot(&mut self, words: usize) -> Result<Slot, Error> {
        let slot = self.state.slots.take(&self.state.context, words).map_err(|error| driver(self.call, error))?;
        slot.note(self.stream);
        Ok(slot)
    }

    /// Keeps the memory in which `source` stores an outcome, until the enqueued operation has
    /// ended. Does nothing if `source` has no such memory. Used for groups: only the outcome of a
    /// group's last operation is read, but the memory for the other outcomes must stay allocated
    /// too.
    pub(crate) fn hold(&mut self, source: Source) {
        if !matches!(source, Source::Copy | Source::Kernel | Source::Launch | Source::Nccl | Source::Hosts) {
            self.keep.push(Arc::new(source));
        }
    }

    /// Returns a view of `len` elements at offset `at` of symmetric memory. `peerweave-core` has
    /// checked this range.
    pub(crate) fn view<T>(&self, at: SymOffset, len: usize) -> SymSlice<T> {
        // SAFETY: `peerweave-core` has checked that the elements are aligned and lie in one live
        // allocation; the queue holds the owner of the allocation.
        unsafe { SymSlice::from_raw(at, len) }
    }

    /// Returns pinned memory of at least `bytes` bytes that only this operation uses.
    pub(crate) fn pinned(&mut self, bytes: usize) -> Result<Arc<Pinned>, Error> {
        let pinned = self.state.pinned(self.call, bytes)?;
        pinned.words.note(self.stream);
        self.held_bytes += class_of(bytes);
        self.keep.push(Arc::<Pinned>::clone(&pinned));
        Ok(pinned)
    }

    fn staged(&mut self, at: *mut u8, bytes: usize) -> Result<Staged, Error> {
        if self.capturing {
            let why = "an operand is memory of the host, which cannot be captured into a graph; use symmetric memory or memory of the device";
            return Err(unsupported(self.call, why));
        }
        let staged = Staged::new(self.state.pinned(self.call, bytes)?, at, bytes);
        staged.note(self.stream);
        self.held_bytes += class_of(bytes);
        self.staged.push(staged.clone());
        Ok(staged)
    }

    /// Returns the device address of an operand, for work on the stream that reads the operand. An
    /// operand in memory of the host is first copied to pinned memory.
    pub(crate) fn reading(&mut self, place: Place, bytes: usize) -> Result<u64, Error> {
        self.note_place(place, bytes);
        let Place::Private(at) = place else { return Ok(self.state.address(place)) };
        let staged = self.staged(at, bytes)?;
        match self.copier {
            // SAFETY: [G3]: the caller of `ops::enqueue` guarantees that the memory is valid for
            // reads now.
            Copier::Caller => unsafe { staged.fill() },
            // SAFETY: [G3]: the memory is valid until the stream has passed the operation.
            Copier::Stream => unsafe { staged.enqueue_fill(self.stream) }.map_err(|error| driver(self.call, error))?,
        }
        Ok(staged.address())
    }

    /// Returns the device address of a result, for work on the stream that writes the result. If
    /// the result is in memory of the host, also returns the pinned memory for it. The caller must
    /// then pass the pinned memory to [`written`](Self::written) after it has enqueued the work.
    pub(crate) fn writing(&mut self, place: Place, bytes: usize) -> Result<(u64, Option<Staged>), Error> {
        self.note_place(place, bytes);
        let Place::Private(at) = place else { return Ok((self.state.address(place), None)) };
        let staged = self.staged(at, bytes)?;
        Ok((staged.address(), Some(staged)))
    }

    /// Schedules the copy of a result from the pinned memory `staged` to the caller's memory. The
    /// caller must already have enqueued the work that writes the result. With [`Copier::Stream`],
    /// enqueues the copy. With [`Copier::Caller`], adds `staged` to `results`, and the calling
    /// thread copies after the operation has ended.
    pub(crate) fn written(&mut self, staged: Option<Staged>) -> Result<(), Error> {
        match (staged, self.copier) {
            (None, _) => {}
            (Some(staged), Copier::Caller) => self.results.push(staged),
            (Some(staged), Copier::Stream) => {
                // SAFETY: [G3]: the memory is valid until the stream has passed the operation.
                unsafe { staged.enqueue_empty(self.stream) }.map_err(|error| driver(self.call, error))?;
            }
        }
        Ok(())
    }

    /// Returns the address of `bytes` bytes of device memory that only this operation uses.
    pub(crate) fn scratch(&mut self, bytes: usize) -> Result<u64, Error> {
        let new = || DeviceMemory::<u8>::alloc(&self.state.context, class_of(bytes));
        // A graph owns the scratch memory that it uses, so this memory is not taken from the pool.
        let memory = if self.capturing { new().map(Arc::new) } else { self.state.scratch.take(bytes, new) };
        let memory = memory.map_err(|error| driver(self.call, error))?;
        drop(memory.read(self.stream).map_err(|error| driver(self.call, error))?);
        let address = memory.address();
        self.held_bytes += class_of(bytes);
        self.keep.push(memory);
        Ok(address)
    }
}
