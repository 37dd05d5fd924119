//! Handles to symmetric memory. Nothing moves between PEs here: see `ops/`.
//!
//! Invariants: **\[S1\]** a handle names elements within one allocation; only `Region::new` and the slicing below make handles.
//! **\[S2\]** The memory is accessed through the backend only, in ways that stay defined while a peer accesses it (\[B4\]); no reference to it
//! is handed out by safe code. **\[S3\]** It stays mapped while a handle, or an operation that uses it, lives: both hold the backend.
//!
//! A release that runs at the same time as another use of the buffer, on another thread, is a mistake of the caller: the use may still find
//! the bytes, which are then perhaps those of a new allocation. It finds them inside the heap, so that \[S2\] holds nevertheless.
#![allow(unsafe_code)]

use crate::arguments::signal::Signal;
use crate::arguments::span::{Owner, Span};
use crate::backend::Place;
use crate::error::{MisuseKind, misuse};
use crate::shared::{LeakedBuffer, Shared};
use crate::{Result, backend, bounds};
use peerweave_types::{DType, Element, SymOffset, SymSlice};
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One allocation of symmetric memory.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) shared: Arc<Shared>,
    number: u64,
    at: SymOffset,
    elements: usize,
    released: AtomicBool,
}

impl Region {
    #[inline]
    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// Whether operations may use it.
    #[inline]
    fn usable(&self, call: &'static str) -> Result<()> {
        self.shared.usable(call)?;
        if self.is_released() {
            return Err(misuse(call, MisuseKind::Released { argument: "self" }));
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !*self.released.get_mut() {
            self.shared.park(self.number);
        }
    }
}

/// A buffer that every PE has a copy of, at the same offset of its heap: a handle to an allocation, or to a range of one.
///
/// Allocated by [`World::alloc`](crate::World::alloc) and its kin, which all PEs call together. The methods here access this PE's copy; operations
/// of a [`Team`](crate::Team) reach the others'. A clone is the same memory.
///
/// A peer may write here at any moment, so that no `&[T]` is handed out: elements are copied. What a copy sees of a write under way is
/// some mixture of old and new elements; waiting for a signal, a barrier or a ticket orders them.
///
/// **Releasing** is collective and explicit ([`Symmetric::release`]). A buffer that is dropped instead stays allocated until
/// [`World::finalize`](crate::World::finalize), which reports it.
pub struct Symmetric<T> {
    region: Arc<Region>,
    at: SymOffset,
    /// In elements.
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Symmetric<T> {
    /// Allocates. Collective; `location` is the user's call.
    pub(crate) fn allocate(
        call: &'static str,
        shared: &Arc<Shared>,
        elements: usize,
        align: usize,
        zeroed: bool,
        location: &'static Location<'static>,
    ) -> Result<Self> {
        shared.usable(call)?;
        let bytes = bounds::allocation(call, elements, T::DTYPE, align, shared.backend.caps().max_align_bytes)?;
        let at = shared.backend.allocate(&backend::Allocation { bytes, align, zeroed })?;
        let type_name = std::any::type_name::<T>();
        let number = shared.enter(LeakedBuffer { elements, type_name, bytes, allocated_at: location, dropped: false }, at);
        let region = Region { shared: Arc::clone(shared), number, at, elements, released: AtomicBool::new(false) };
        Ok(Self { region: Arc::new(region), at, len: elements, element: PhantomData })
    }

    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the first element lies in the segment of every PE, in bytes.
    #[inline]
    pub fn offset(&self) -> SymOffset {
        self.at
    }

    /// The elements as a kernel sees them: the same place in every PE's heap.
    ///
    /// A launch takes `&Symmetric<T>` itself; this is for arguments that are structs. The view keeps nothing alive: a launch checks
    /// that it lies in an allocation that was not released.
    #[inline]
    pub fn view(&self) -> SymSlice<T> {
        // SAFETY: [S1]: the elements lie in one allocation, aligned; launches check that it is live, and a release waits for the
        // kernels that were enqueued before it.
        unsafe { SymSlice::from_raw(self.at, self.len) }
    }

    /// Whether the allocation was released, through this handle or another.
    pub fn is_released(&self) -> bool {
        self.region.is_released()
    }

    /// A handle to a range of this one's elements.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) where the range does not lie in this one.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = bounds::range("slice", self.len, &range)?;
        Ok(self.part(start, len))
    }

    /// Handles to the elements before `middle` and to the rest.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) where `middle` is more than the length.
    pub fn split_at(&self, middle: usize) -> Result<(Self, Self)> {
        bounds::range("split_at", self.len, &(..middle))?;
        Ok((self.part(0, middle), self.part(middle, self.len - middle)))
    }

    /// Handles to `len` elements each, in order; the last may have fewer.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) where `len` is 0.
    pub fn chunks(&self, len: usize) -> Result<impl ExactSizeIterator<Item = Self>> {
        bounds::positive("chunks", "len", len)?;
        Ok((0..self.len.div_ceil(len)).map(move |i| self.part(i * len, len.min(self.len - i * len))))
    }

    fn part(&self, start: usize, len: usize) -> Self {
        debug_assert!(start + len <= self.len);
        let at = self.at.plus((start * size_of::<T>()) as u64);
        Self { region: self.region.clone(), at, len, element: PhantomData }
    }

    /// The address of this PE's copy.
    ///
    /// It is valid until the allocation is released or the last handle of the world is gone. Peers may write there at any moment: accesses
    /// through it must be atomic, or be kept apart from theirs by signals or barriers.
    pub fn as_ptr(&self) -> *mut T {
        self.region.shared.backend.local(self.at).cast()
    }

    /// A copy of this PE's elements.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after release or finalize.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.region.usable("to_vec")?;
        let mut into = Vec::<T>::with_capacity(self.len);
        // SAFETY: [S1]: the bytes lie in one allocation, which is not released; `into` has room for them and is no symmetric memory. They are
        // then initialised, and every bit pattern is a value ([E1]).
        unsafe {
            self.region.shared.backend.read_local(self.at, into.as_mut_ptr().cast(), self.len * size_of::<T>());
            into.set_len(self.len);
        }
        Ok(into)
    }

    /// Copies this PE's elements into a slice of the same length.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) where the lengths differ, and after release or finalize.
    pub fn copy_to(&self, into: &mut [T]) -> Result<()> {
        self.region.usable("copy_to")?;
        bounds::length("copy_to", "into", into.len(), self.len)?;
        // SAFETY: [S1] and not released; `into` has as many bytes. It is no symmetric memory: safe code has no reference to any ([S2]), and
        // the contract of `as_slice` forbids it.
        unsafe { self.region.shared.backend.read_local(self.at, into.as_mut_ptr().cast(), size_of_val(into)) };
        Ok(())
    }

    /// Replaces this PE's elements by those of a slice of the same length.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) where the lengths differ, and after release or finalize.
    pub fn copy_from(&self, from: &[T]) -> Result<()> {
        self.region.usable("copy_from")?;
        bounds::length("copy_from", "from", from.len(), self.len)?;
        // SAFETY: as in `copy_to`, in the other direction.
        unsafe { self.region.shared.backend.write_local(self.at, from.as_ptr().cast(), size_of_val(from)) };
        Ok(())
    }

    /// Gives all of this PE's elements one value.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after release or finalize.
    pub fn fill(&self, value: T) -> Result<()> {
        const CHUNK: usize = 512;
        self.region.usable("fill")?;
        let values = [value; CHUNK];
        for start in (0..self.len).step_by(CHUNK) {
            let bytes = CHUNK.min(self.len - start) * size_of::<T>();
            let at = self.at.plus((start * size_of::<T>()) as u64);
            // SAFETY: [S1] and not released: `start` and what follows lie within `len`; `values` has `CHUNK` elements.
            unsafe { self.region.shared.backend.write_local(at, values.as_ptr().cast(), bytes) };
        }
        Ok(())
    }

    /// One element of this PE's copy.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) where there is no such element, and after release or finalize.
    #[inline]
    pub fn load(&self, index: usize) -> Result<T> {
        self.region.usable("load")?;
        bounds::index("load", "self", index, self.len)?;
        let mut value = T::default();
        // SAFETY: [S1] and not released; `index` is less than `len`, and `value` is one element.
        unsafe { self.region.shared.backend.read_local(self.element(index), (&raw mut value).cast(), size_of::<T>()) };
        Ok(value)
    }

    /// Replaces one element of this PE's copy.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) where there is no such element, and after release or finalize.
    #[inline]
    pub fn store(&self, index: usize, value: T) -> Result<()> {
        self.region.usable("store")?;
        bounds::index("store", "self", index, self.len)?;
        // SAFETY: [S1] and not released; `index` is less than `len`, and `value` is one element.
        unsafe { self.region.shared.backend.write_local(self.element(index), (&raw const value).cast(), size_of::<T>()) };
        Ok(())
    }

    #[inline]
    fn element(&self, index: usize) -> SymOffset {
        self.at.plus((index * size_of::<T>()) as u64)
    }

    /// This PE's elements as a slice, without a copy.
    ///
    /// # Safety
    /// While the slice lives: no PE writes these elements by any operation or kernel, this one included (`store`, `copy_from`, `fill`, a collective, a
    /// queued operation); the allocation is not released; a handle of its world lives; and the slice is not passed to any call of
    /// Peerweave, which would take it for ordinary memory. What peers wrote before must be ordered before this call, by a barrier or a wait.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after release or finalize.
    pub unsafe fn as_slice(&self) -> Result<&[T]> {
        self.region.usable("as_slice")?;
        // SAFETY: [S1]: `len` elements of one live allocation, mapped and aligned; every bit pattern is a value ([E1]); that nobody writes them
        // meanwhile is what the caller promises.
        Ok(unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) })
    }

    /// This PE's elements as a slice to be written, without a copy.
    ///
    /// # Safety
    /// As [`Symmetric::as_slice`]; and no PE reads these elements meanwhile either, and no other slice of them lives.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after release or finalize.
    #[allow(clippy::mut_from_ref, reason = "handles are shared; that this is the only slice is what the caller promises")]
    pub unsafe fn as_mut_slice(&self) -> Result<&mut [T]> {
        self.region.usable("as_mut_slice")?;
        // SAFETY: as in `as_slice`; that nobody else reads or writes them is what the caller promises.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len) })
    }

    /// Gives the whole allocation back. Other handles to it fail from now on.
    ///
    /// # Collective
    /// All PEs, in the same order as their other allocations and releases. Returns once this PE's queued operations that use the heap
    /// have completed and every PE has called.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) for a handle to a range, for an allocation that was released before, and after finalize: the allocation is then
    /// as it was. What the backend reports.
    pub fn release(self) -> Result<()> {
        const CALL: &str = "release";
        let region = &*self.region;
        region.shared.usable(CALL)?;
        bounds::whole(CALL, (self.at.0 - region.at.0) as usize / size_of::<T>(), self.len, region.elements)?;
        if region.released.swap(true, Ordering::AcqRel) {
            return Err(misuse(CALL, MisuseKind::Released { argument: "self" }));
        }
        let outcome = region.shared.backend.release(region.at);
        match &outcome {
            Ok(()) => region.shared.remove(region.number),
            // Others called something else; the allocation is as it was, for other handles.
            Err(crate::Error::Mismatch(_)) => region.released.store(false, Ordering::Release),
            Err(_) => {}
        }
        outcome
    }

    #[inline]
    pub(crate) fn span(&self) -> Span<'_> {
        Span { place: Place::Symmetric(self.at), len: self.len, dtype: T::DTYPE, owner: Owner::Region(&self.region) }
    }

    #[inline]
    pub(crate) fn remote(&self) -> Remote<'_> {
        Remote { at: self.at, len: self.len, dtype: T::DTYPE, region: &self.region }
    }
}

impl Symmetric<u64> {
    /// The word at `index` as a signal.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) where there is no such element.
    pub fn signal(&self, index: usize) -> Result<Signal> {
        bounds::index("signal", "self", index, self.len)?;
        Ok(Signal::new(self.region.clone(), self.element(index)))
    }
}

/// Symmetric memory that an operation reaches at another PE, erased.
#[derive(Clone, Copy)]
pub(crate) struct Remote<'a> {
    pub(crate) at: SymOffset,
    /// In elements.
    pub(crate) len: usize,
    pub(crate) dtype: DType,
    pub(crate) region: &'a Arc<Region>,
}

impl<'a> Remote<'a> {
    /// The same place of this PE.
    #[inline]
    pub(crate) fn here(self) -> Span<'a> {
        Span { place: Place::Symmetric(self.at), len: self.len, dtype: self.dtype, owner: Owner::Region(self.region) }
    }
}

/// The same memory.
impl<T> Clone for Symmetric<T> {
    fn clone(&self) -> Self {
        Self { region: self.region.clone(), at: self.at, len: self.len, element: PhantomData }
    }
}

impl<T> fmt::Debug for Symmetric<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.region.is_released() { ", released" } else { "" };
        write!(f, "Symmetric<{}>[{} at offset {}{state}]", std::any::type_name::<T>(), self.len, self.at.0)
    }
}
