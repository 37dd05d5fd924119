//! Handles to symmetric memory. `ops/` defines the operations between PEs.
//!
//! Invariants:
//! - **\[S1\]** A handle refers to aligned elements within one allocation. Only
//!   `Symmetric::allocate`, `Symmetric::find`, the slicing methods of this file and `view.rs` make
//!   handles.
//! - **\[S2\]** The memory is accessed only through the backend. These accesses are defined even if
//!   a peer accesses the same bytes at the same time, as the promise \[B4\] of `Backend` says. Safe
//!   code gets no reference to the memory.
//! - **\[S3\]** The memory stays mapped while a handle or an operation refers to the memory,
//!   because each handle and each operation keeps the backend alive.
//!
//! If one thread releases a buffer while another thread uses it, the caller has a bug: the second
//! thread may access bytes of a new allocation. These bytes lie in the heap, so \[S2\] still holds.
#![allow(unsafe_code)]

use crate::arguments::buffer::{element_bits, is_word};
use crate::arguments::signal::Signal;
use crate::arguments::span::{Owner, Span};
use crate::backend::error::{Error, MisuseKind, misuse};
use crate::backend::{LocalAddress, Place};
use crate::shared::{LeakedBuffer, Shared};
use crate::{Result, backend, bounds};
use peerweave_types::{DType, Element, SymOffset, SymSlice};
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

impl crate::backend::Owner for Region {}

/// One allocation of symmetric memory. All handles to the allocation share this value.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) shared: Arc<Shared>,
    number: u64,
    at: SymOffset,
    bytes: usize,
    released: AtomicBool,
}

impl Region {
    /// Returns the allocation that contains the `bytes` bytes at `at`. Returns `None` if these
    /// bytes do not lie within one allocation, or if the allocation has been released.
    pub(crate) fn containing(shared: &Arc<Shared>, at: SymOffset, bytes: u64) -> Option<Arc<Self>> {
        let region = shared.region_at(at, bytes, |number, at, bytes| Self {
            shared: Arc::clone(shared),
            number,
            at,
            bytes,
            released: AtomicBool::new(false),
        });
        region.filter(|region| !region.is_released())
    }

    #[inline]
    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// Checks that the allocation has not been released, and that this PE may still access its own
    /// copy of symmetric memory.
    #[inline]
    fn usable(&self, call: &'static str) -> Result<()> {
        self.shared.usable_locally(call)?;
        if self.is_released() {
            return Err(misuse(call, MisuseKind::Released { argument: "self" }));
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !*self.released.get_mut() {
            self.shared.note_dropped(self.number, self.at);
        }
    }
}

/// A handle to symmetric memory: a buffer that every PE has at the same offset in its symmetric
/// memory, or a range of such a buffer.
///
/// [`World::alloc`](crate::World::alloc), which all PEs call together, allocates the buffer. The
/// methods of this type access this PE's copy of the buffer. Operations of a [`Team`](crate::Team)
/// access the copies of other PEs. A clone refers to the same memory.
///
/// A peer may write to the memory at any time, so safe code cannot borrow the memory as a `&[T]`:
/// the methods copy elements. A copy made during a write is a mixture of old and new bytes. To
/// order the copy after the write, wait for a signal, a barrier or a ticket.
///
/// **Releasing** is collective and explicit ([`Symmetric::release`]). A buffer that is dropped
/// without a release stays allocated until [`World::finalize`](crate::World::finalize), which
/// reports the buffer.
///
/// **After [`World::shrink`](crate::World::shrink)** the methods that access this PE's copy still
/// work, so that this PE can copy data to the new world. Operations and [`Symmetric::release`]
/// fail. The memory is freed when the last handle of the old world is dropped.
pub struct Symmetric<T> {
    region: Arc<Region>,
    at: SymOffset,
    /// The number of elements that this handle refers to.
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Symmetric<T> {
    /// Allocates symmetric memory. The call is collective. `location` is the source location of the
    /// user's call.
    pub(crate) fn allocate(
        call: &'static str,
        shared: &Arc<Shared>,
        elements: usize,
        align: usize,
        zeroed: bool,
        location: &'static Location<'static>,
    ) -> Result<Self> {
        shared.usable(call)?;
        // An invalid alignment is passed on unchanged, so that the error reports the value that the
        // caller gave.
        let align = if align.is_power_of_two() { align.max(align_of::<T>()) } else { align };
        let bytes = bounds::allocation(call, elements, size_of::<T>(), align, shared.backend.caps().max_align_bytes)?;
        let at = shared.backend.allocate(&backend::Allocation { bytes, dtype: T::DTYPE, align, zeroed });
        // The backend does not know the name of the call that allocates.
        let at = at.map_err(|error| match error {
            Error::OutOfMemory { requested_bytes, available_bytes, what, .. } => {
                Error::OutOfMemory { call, requested_bytes, available_bytes, what }
            }
            error => error,
        })?;
        let type_name = std::any::type_name::<T>();
        let number = shared.enter(LeakedBuffer { elements, type_name, bytes, allocated_at: location, dropped: false }, at);
        let region = Region { shared: Arc::clone(shared), number, at, bytes, released: AtomicBool::new(false) };
        let region = Arc::new(region);
        shared.share(at, Arc::<Region>::downgrade(&region));
        Ok(Self { region, at, len: elements, element: PhantomData })
    }

    /// Returns a handle to `len` elements at `at`. Fails if the elements do not lie within one
    /// allocation.
    pub(crate) fn find(call: &'static str, shared: &Arc<Shared>, at: SymOffset, len: usize) -> Result<Self> {
        shared.usable(call)?;
        let (size, offset) = (size_of::<T>(), at.0);
        let found = || format!("{len} elements of {size} bytes at offset {offset}");
        let bytes = len.checked_mul(size_of::<T>());
        let Some(region) = bytes.and_then(|bytes| Region::containing(shared, at, bytes as u64)) else {
            let expected = "elements within one allocation that was not released";
            return Err(bounds::wrong_value(call, "offset", found(), expected));
        };
        if !at.0.is_multiple_of(align_of::<T>() as u64) {
            return Err(bounds::wrong_value(call, "offset", found(), "a multiple of the alignment of the elements"));
        }
        Ok(Self { region, at, len, element: PhantomData })
    }

    /// Returns the number of elements that the handle refers to.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the handle refers to no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the byte offset of the first element in symmetric memory. The offset is the same on
    /// every PE.
    #[inline]
    pub fn offset(&self) -> SymOffset {
        self.at
    }

    /// Returns a view that kernels use to access the elements. The view refers to the same offset
    /// in the symmetric memory of every PE.
    ///
    /// A launch accepts `&Symmetric<T>` directly. A view is needed only as a field of a struct that
    /// is passed to a kernel. The view does not keep the memory alive. A launch checks that the
    /// view lies within an allocation that has not been released.
    #[inline]
    pub fn view(&self) -> SymSlice<T> {
        // SAFETY: [S1]: the elements lie in one allocation and are aligned. Launches check that the
        // allocation is live, and a release waits for the kernels that were enqueued before it.
        unsafe { SymSlice::from_raw(self.at, self.len) }
    }

    /// Returns whether the allocation has been released, through this handle or another handle.
    pub fn is_released(&self) -> bool {
        self.region.is_released()
    }

    /// Returns a handle to a range of the elements of this handle.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the range does not lie within this handle.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = bounds::range("slice", self.len, &range)?;
        Ok(self.part(start, len))
    }

    /// Returns a handle to the elements before index `middle`, and a handle to the remaining
    /// elements.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if `middle` exceeds the length.
    pub fn split_at(&self, middle: usize) -> Result<(Self, Self)> {
        bounds::range("split_at", self.len, &(..middle))?;
        Ok((self.part(0, middle), self.part(middle, self.len - middle)))
    }

    /// Returns an iterator over handles to consecutive parts of `len` elements. The last part may
    /// be shorter.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if `len` is 0.
    pub fn chunks(&self, len: usize) -> Result<impl ExactSizeIterator<Item = Self>> {
        bounds::positive("chunks", "len", len)?;
        Ok((0..self.len.div_ceil(len)).map(move |i| self.part(i * len, len.min(self.len - i * len))))
    }

    fn part(&self, start: usize, len: usize) -> Self {
        debug_assert!(start + len <= self.len);
        let at = self.element(start);
        Self { region: self.region.clone(), at, len, element: PhantomData }
    }

    /// Restricts this handle to `len` elements, starting at element `start`. These elements must
    /// lie within the handle.
    #[inline(always)]
    pub(super) fn narrow(&mut self, start: usize, len: usize) {
        debug_assert!(start + len <= self.len);
        (self.at, self.len) = (self.element(start), len);
    }

    /// Returns a handle to the same bytes, as `len` elements of type `U`. The handle must cover
    /// exactly the bytes of `len` elements, and these bytes must be aligned for `U`.
    pub(super) fn retyped<U>(&self, len: usize) -> Symmetric<U> {
        Symmetric { region: self.region.clone(), at: self.at, len, element: PhantomData }
    }

    /// Returns the address at which the host can access this PE's copy.
    ///
    /// The address is valid until the allocation is released or the last handle of the world is
    /// dropped. Peers may write to the memory at any time. Accesses through the address must
    /// therefore be atomic, or must be ordered by signals or barriers.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if only a device can access the memory:
    /// see [`Symmetric::device_address`].
    pub fn as_ptr(&self) -> Result<*mut T> {
        self.host("as_ptr")
    }

    /// Returns the device address of this PE's copy and the ordinal of the device. Kernels and
    /// copies on that device can use the address. Returns `None` for host memory. The address is
    /// valid until the allocation is released or the last handle of the world is dropped.
    pub fn device_address(&self) -> Option<(u64, usize)> {
        match self.region.shared.backend.local(self.at) {
            LocalAddress::Device { address, ordinal } => Some((address, ordinal)),
            LocalAddress::Host(_) => None,
        }
    }

    fn host(&self, call: &'static str) -> Result<*mut T> {
        match self.region.shared.backend.local(self.at) {
            LocalAddress::Host(address) => Ok(address.cast()),
            LocalAddress::Device { .. } => {
                let why = "the memory belongs to a device: copy it with `to_vec` and `copy_from`, or pass it to operations";
                Err(Error::Unsupported { call, backend: self.region.shared.backend.name(), why })
            }
        }
    }

    /// Copies this PE's elements into a new vector. The copy is not ordered with the operations on
    /// streams. For a stream-ordered copy, call [`Stream::copy`](crate::Stream::copy).
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after release or finalize. For device memory also
    /// [`Error::Timeout`](crate::Error::Timeout) and errors of the device.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.region.usable("to_vec")?;
        let mut into = Vec::<T>::with_capacity(self.len);
        // SAFETY: [S1]: the bytes lie in one allocation, which is not released; `into` has room for
        // them and is not symmetric memory. The bytes are then initialised, and every bit pattern
        // is a value ([E1]).
        unsafe {
            self.region.shared.backend.read_local(self.at, into.as_mut_ptr().cast(), self.len * size_of::<T>())?;
            into.set_len(self.len);
        }
        Ok(into)
    }

    /// Copies this PE's elements into `into`, a slice of the same length.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the lengths differ; otherwise as for [`Symmetric::to_vec`].
    pub fn copy_to(&self, into: &mut [T]) -> Result<()> {
        self.region.usable("copy_to")?;
        bounds::length("copy_to", "into", into.len(), self.len)?;
        // SAFETY: [S1] and not released; `into` has as many bytes as this handle. `into` is not
        // symmetric memory: safe code has no reference to symmetric memory ([S2]), and the contract
        // of `as_slice` forbids passing its slice to this call.
        unsafe { self.region.shared.backend.read_local(self.at, into.as_mut_ptr().cast(), size_of_val(into)) }
    }

    /// Overwrites this PE's elements with those of `from`, a slice of the same length.
    ///
    /// # Errors
    /// As for [`Symmetric::copy_to`].
    pub fn copy_from(&self, from: &[T]) -> Result<()> {
        self.region.usable("copy_from")?;
        bounds::length("copy_from", "from", from.len(), self.len)?;
        // SAFETY: as in `copy_to`, in the other direction.
        unsafe { self.region.shared.backend.write_local(self.at, from.as_ptr().cast(), size_of_val(from)) }
    }

    /// Sets all of this PE's elements to `value`. If the memory is on a device, the device writes
    /// the memory. The call is not ordered with the operations on streams. For a stream-ordered
    /// fill, call [`Stream::fill`](crate::Stream::fill).
    ///
    /// # Errors
    /// As for [`Symmetric::to_vec`].
    pub fn fill(&self, value: T) -> Result<()> {
        self.region.usable("fill")?;
        if is_word::<T>() {
            // SAFETY: [S1] and not released.
            return unsafe { self.region.shared.backend.fill_local(self.at, element_bits(value), size_of::<T>(), self.len) };
        }
        const CHUNK_BYTES: usize = 4096;
        let chunk = vec![value; self.len.min(CHUNK_BYTES / size_of::<T>() + 1)];
        for start in (0..self.len).step_by(chunk.len().max(1)) {
            let bytes = size_of_val(&chunk[..chunk.len().min(self.len - start)]);
            // SAFETY: [S1] and not released; the chunk has at least `bytes` bytes, and so has this
            // handle from element `start`.
            unsafe { self.region.shared.backend.write_local(self.element(start), chunk.as_ptr().cast(), bytes) }?;
        }
        Ok(())
    }

    /// Reads the element at `index` from this PE's copy.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the handle has no element at `index`; otherwise as for
    /// [`Symmetric::to_vec`].
    #[inline]
    pub fn load(&self, index: usize) -> Result<T> {
        self.region.usable("load")?;
        bounds::index("load", "index", index, self.len)?;
        let mut value = T::zeroed();
        // SAFETY: [S1] and not released; `index` is less than `len`, and `value` is one element.
        unsafe { self.region.shared.backend.read_local(self.element(index), (&raw mut value).cast(), size_of::<T>()) }?;
        Ok(value)
    }

    /// Writes `value` to the element at `index` in this PE's copy.
    ///
    /// # Errors
    /// As for [`Symmetric::load`].
    #[inline]
    pub fn store(&self, index: usize, value: T) -> Result<()> {
        self.region.usable("store")?;
        bounds::index("store", "index", index, self.len)?;
        // SAFETY: [S1] and not released; `index` is less than `len`, and `value` is one element.
        unsafe { self.region.shared.backend.write_local(self.element(index), (&raw const value).cast(), size_of::<T>()) }
    }

    #[inline]
    fn element(&self, index: usize) -> SymOffset {
        self.at.plus((index * size_of::<T>()) as u64)
    }

    /// Borrows this PE's elements as a slice.
    ///
    /// # Safety
    /// While the slice lives:
    /// - No PE, including this one, writes these elements by a method of this type, an operation or
    ///   a kernel. Examples are `store`, `copy_from`, `fill`, a collective and a pending operation.
    /// - The allocation is not released, and at least one handle of its world lives.
    /// - The slice is not passed to a Peerweave call, because the call would treat the slice as
    ///   ordinary memory.
    ///
    /// Earlier writes by peers must be ordered before this call, by a barrier or a wait.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after release or finalize;
    /// [`Error::Unsupported`](crate::Error::Unsupported) if only a device can access the memory.
    pub unsafe fn as_slice(&self) -> Result<&[T]> {
        self.region.usable("as_slice")?;
        let first = self.host("as_slice")?;
        // SAFETY: [S1]: `len` elements of one live allocation, mapped and aligned; every bit
        // pattern is a value ([E1]); the caller guarantees that no PE writes the elements
        // meanwhile.
        Ok(unsafe { std::slice::from_raw_parts(first, self.len) })
    }

    /// Borrows this PE's elements as a mutable slice.
    ///
    /// # Safety
    /// The conditions of [`Symmetric::as_slice`] hold. In addition, while the slice lives, no PE
    /// reads these elements, and no other slice of these elements lives.
    ///
    /// # Errors
    /// As for [`Symmetric::as_slice`].
    #[allow(clippy::mut_from_ref, reason = "handles are shared; the caller guarantees that this is the only slice")]
    pub unsafe fn as_mut_slice(&self) -> Result<&mut [T]> {
        self.region.usable("as_mut_slice")?;
        let first = self.host("as_mut_slice")?;
        // SAFETY: as in `as_slice`; the caller guarantees that no PE reads or writes the elements
        // meanwhile.
        Ok(unsafe { std::slice::from_raw_parts_mut(first, self.len) })
    }

    /// Releases the whole allocation. Later calls on other handles to the allocation fail.
    ///
    /// # Collective
    /// All PEs must call this method, and make all allocations and releases in the same order. The
    /// call returns once every PE has made the call, and this PE's pending operations that use
    /// symmetric memory are complete.
    ///
    /// This call waits for stream-ordered operations, but not for blocking calls of other threads.
    /// Blocking calls that use this buffer must have returned before their PE calls `release`.
    /// Otherwise a put that is still running may write into the memory of a later allocation.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) for a handle to a range, for an allocation that has already been
    /// released, and after finalize. In these cases, the call changes nothing. Otherwise errors of
    /// the backend.
    pub fn release(self) -> Result<()> {
        const CALL: &str = "release";
        let region = &*self.region;
        region.shared.usable(CALL)?;
        let start = (self.at.0 - region.at.0) as usize / size_of::<T>();
        bounds::whole(CALL, start, self.len, region.bytes / size_of::<T>())?;
        if region.released.swap(true, Ordering::AcqRel) {
            return Err(misuse(CALL, MisuseKind::Released { argument: "self" }));
        }
        let outcome = region.shared.backend.release(region.at);
        match &outcome {
            Ok(()) => region.shared.remove(region.number, region.at),
            // The PEs made different calls: the allocation stays valid for other handles.
            Err(crate::Error::Mismatch(_)) => region.released.store(false, Ordering::Release),
            Err(_) => {}
        }
        outcome
    }

    #[inline]
    pub(crate) fn span(&self) -> Span<'_> {
        Span {
            place: Place::Symmetric(self.at),
            len: self.len,
            dtype: T::DTYPE,
            parts: T::PARTS,
            owner: Owner::Region(&self.region),
        }
    }

    #[inline]
    pub(crate) fn remote(&self) -> Remote<'_> {
        Remote { at: self.at, len: self.len, dtype: T::DTYPE, parts: T::PARTS, region: &self.region }
    }
}

impl Symmetric<u64> {
    /// Borrows element `index` as a signal word.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the handle has no element at `index`.
    #[inline]
    pub fn signal(&self, index: usize) -> Result<Signal<'_>> {
        bounds::index("signal", "index", index, self.len)?;
        Ok(Signal::new(&self.region, self.element(index)))
    }
}

/// Symmetric memory that an operation accesses on its target PE, with the element type erased.
#[derive(Clone, Copy)]
pub(crate) struct Remote<'a> {
    pub(crate) at: SymOffset,
    /// The length of the memory, in elements.
    pub(crate) len: usize,
    pub(crate) dtype: DType,
    /// Number of values of type `dtype` in one element. An element such as an array or a complex
    /// number consists of several values.
    pub(crate) parts: usize,
    pub(crate) region: &'a Arc<Region>,
}

impl<'a> Remote<'a> {
    /// Returns the size of an element, in bytes.
    #[inline(always)]
    pub(crate) fn element_bytes(&self) -> usize {
        self.parts * self.dtype.size_bytes()
    }

    /// Returns the span at the same offset in this PE's own symmetric memory.
    #[inline]
    pub(crate) fn here(self) -> Span<'a> {
        Span {
            place: Place::Symmetric(self.at),
            len: self.len,
            dtype: self.dtype,
            parts: self.parts,
            owner: Owner::Region(self.region),
        }
    }
}

/// Returns a new handle to the same elements.
impl<T> Clone for Symmetric<T> {
    fn clone(&self) -> Self {
        Self { region: self.region.clone(), at: self.at, len: self.len, element: PhantomData }
    }
}

impl<T> fmt::Debug for Symmetric<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.region.is_released() { ", released" } else { "" };
        let (element, len, offset) = (std::any::type_name::<T>(), self.len, self.at.0);
        write!(f, "Symmetric<{element}>[{len} at offset {offset}{state}]")
    }
}
