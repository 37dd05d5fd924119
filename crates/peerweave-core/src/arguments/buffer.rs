//! Ordinary memory of this process that pending operations may use. `symmetric.rs` contains the
//! memory that peers can access.
//!
//! Invariants: **\[P1\]** A [`Memory`] owns the allocation of a `Vec`. The allocation is freed when
//! the last handle is dropped and the last operation that uses it has ended. **\[P2\]** While
//! several handles or operations may share the allocation, every access is atomic and uses a raw
//! pointer. The reason is that an operation on another thread may access the allocation at any
//! time. Only [`Buffer::get_mut`] returns a reference to the elements, and only if no other handle
//! or operation shares them.
#![allow(unsafe_code)]

use crate::arguments::shared_bytes;
use crate::arguments::span::{Owner, Span};
use crate::backend::Place;
use crate::{Result, bounds};
use peerweave_types::Element;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::RangeBounds;
use std::ptr::NonNull;
use std::sync::Arc;

impl crate::backend::Owner for Memory {}

/// The memory of a `Vec`, with the element type erased.
pub(crate) struct Memory {
    at: NonNull<u8>,
    /// Length of the `Vec`, in elements.
    len: usize,
    /// Capacity of the `Vec`, in elements.
    capacity: usize,
    /// The function that frees the memory of the `Vec`. Its arguments are `at` and `capacity`.
    free: unsafe fn(NonNull<u8>, usize),
}

// SAFETY: shared: the bytes behind `at`. Synchronised: by [P2], every access while the memory is
// shared is atomic. The count of the `Arc` around the memory orders the last access before the
// free, and before `into_vec` returns the `Vec`. Elements are not bound to a thread ([E4]: `Copy`,
// no pointers). A violation would be caught by:
// `queued_operations_keep_buffers_alive_until_completion` in tests/streams.rs, under
// ThreadSanitizer.
unsafe impl Send for Memory {}
// SAFETY: as for Send.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new<T: Element>(vec: Vec<T>) -> Self {
        /// Frees the memory of a `Vec<T>`.
        ///
        /// # Safety
        /// `at` and `capacity` are the pointer and the capacity of a `Vec<T>` whose destructor did
        /// not run and does not run later. The memory is not used after this call.
        unsafe fn free<T>(at: NonNull<u8>, capacity: usize) {
            // SAFETY: the caller passes the pointer and capacity of a `Vec<T>` that was taken apart
            // below; `T` is `Copy`, so no destructor is skipped by a length of 0.
            drop(unsafe { Vec::<T>::from_raw_parts(at.cast().as_ptr(), 0, capacity) });
        }
        let mut vec = ManuallyDrop::new(vec);
        // A `Vec`'s pointer is never null.
        let at = NonNull::new(vec.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Self { at: at.cast(), len: vec.len(), capacity: vec.capacity(), free: free::<T> }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: [P1]: this is the last use; pointer and capacity are those of the `Vec` that was
        // taken apart in `new`.
        unsafe { (self.free)(self.at, self.capacity) }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("at", &self.at).field("len", &self.len).finish_non_exhaustive()
    }
}

/// A handle to ordinary memory of this process, or to a range of such memory. Several handles and
/// operations can share the memory.
///
/// A clone refers to the same memory. A stream that has a pending operation on the memory keeps the
/// memory alive, so handles can be dropped while the operation is pending. Memory may be read while
/// an operation writes it; the read then returns a mixture of old and new values. To read only new
/// values, wait for the operation's [`Ticket`](crate::Ticket) first.
///
/// ```
/// use peerweave::{Buffer, ReduceOp, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let stream = world.stream()?;
/// let (x, sum) = (Buffer::from(vec![1, 2, 3]), Buffer::zeroed(3));
/// world.team().all_reduce(&stream, &x, &sum, ReduceOp::Sum)?.wait()?;
/// assert_eq!(sum.into_vec().unwrap(), [1, 2, 3].map(|x| x * world.n_pes() as i32));
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
pub struct Buffer<T> {
    memory: Arc<Memory>,
    /// The index of the first element that this handle refers to.
    start: usize,
    /// The number of elements that this handle refers to. `start + len` is at most `memory.len`.
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// Creates a buffer of `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        Self::from(vec![T::zeroed(); len])
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

    /// Returns a handle to a range of the elements of this handle.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the range does not lie within this handle.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = bounds::range("slice", self.len, &range)?;
        Ok(Self { memory: self.memory.clone(), start: self.start + start, len, element: PhantomData })
    }

    /// Copies the elements into a new vector.
    pub fn to_vec(&self) -> Vec<T> {
        let mut into = vec![T::zeroed(); self.len];
        self.read(&mut into);
        into
    }

    /// Copies all elements into `into`, a slice of the same length.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the lengths differ.
    pub fn copy_to(&self, into: &mut [T]) -> Result<()> {
        bounds::length("copy_to", "into", into.len(), self.len)?;
        self.read(into);
        Ok(())
    }

    /// Overwrites all elements with those of `from`, a slice of the same length.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the lengths differ.
    pub fn copy_from(&self, from: &[T]) -> Result<()> {
        bounds::length("copy_from", "from", from.len(), self.len)?;
        // SAFETY: [P2]: an atomic write within the memory; `from` has as many bytes as this buffer.
        // `from` is borrowed, so no thread writes it.
        unsafe { shared_bytes::write(from.as_ptr().cast(), self.at(), size_of_val(from)) };
        Ok(())
    }

    /// Returns the elements without copying them, if neither another handle nor a pending operation
    /// shares them.
    ///
    /// # Errors
    /// Returns the buffer itself if its memory is still shared, or if the buffer is a handle to a
    /// range.
    pub fn into_vec(self) -> Result<Vec<T>, Self> {
        if self.len != self.memory.len {
            return Err(self);
        }
        let Self { memory, start, len, element } = self;
        match Arc::try_unwrap(memory) {
            Ok(memory) => {
                let memory = ManuallyDrop::new(memory);
                // SAFETY: [P1]: these are the parts of a `Vec<T>`, by the type of this handle. This
                // was the last owner, and `ManuallyDrop` prevents the drop of `memory`. All
                // elements are initialised: they were in the `Vec`, and operations write values
                // only.
                Ok(unsafe { Vec::from_raw_parts(memory.at.cast().as_ptr(), memory.len, memory.capacity) })
            }
            Err(memory) => Err(Self { memory, start, len, element }),
        }
    }

    /// Borrows the elements mutably. Returns `None` if another handle or a pending operation shares
    /// them.
    pub fn get_mut(&mut self) -> Option<&mut [T]> {
        let (start, len) = (self.start, self.len);
        let memory = Arc::get_mut(&mut self.memory)?;
        // SAFETY: the range lies in the memory, which holds values of `T`. This is the only handle,
        // and it stays borrowed while the slice lives, so it can neither be cloned nor passed to an
        // operation.
        Some(unsafe { std::slice::from_raw_parts_mut(memory.at.cast::<T>().as_ptr().add(start), len) })
    }

    /// Returns the address of the first element. An access through the address must be atomic, or
    /// must not be concurrent with an operation or with an access through another handle.
    pub fn as_ptr(&self) -> *mut T {
        self.at().cast()
    }

    #[inline]
    fn at(&self) -> *mut u8 {
        self.memory.at.as_ptr().wrapping_add(self.start * size_of::<T>())
    }

    /// Returns the first element. The buffer must not be empty.
    pub(crate) fn first(&self) -> T {
        let mut value = T::zeroed();
        assert!(self.len > 0, "peerweave-core bug: the buffer has no element");
        // SAFETY: [P2]: an atomic read of one element, which lies in the memory; `value` has its
        // size.
        unsafe { shared_bytes::read(self.at(), (&raw mut value).cast(), size_of::<T>()) };
        value
    }

    fn read(&self, into: &mut [T]) {
        // SAFETY: [P2]: an atomic read of `len` elements, which lie in the memory. `into` has as
        // many elements, and is borrowed exclusively. Every byte is valid ([E1]).
        unsafe { shared_bytes::read(self.at(), into.as_mut_ptr().cast(), size_of_val(into)) };
    }

    #[inline]
    pub(crate) fn span(&self) -> Span<'_> {
        Span {
            place: Place::Private(self.at()),
            len: self.len,
            dtype: T::DTYPE,
            parts: T::PARTS,
            owner: Owner::Memory(&self.memory),
        }
    }
}

/// Creates a buffer that owns the elements of the vector, without copying them.
impl<T: Element> From<Vec<T>> for Buffer<T> {
    fn from(vec: Vec<T>) -> Self {
        let len = vec.len();
        Self { memory: Arc::new(Memory::new(vec)), start: 0, len, element: PhantomData }
    }
}

impl<T: Element> FromIterator<T> for Buffer<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        Self::from(Vec::from_iter(elements))
    }
}

/// Returns a new handle to the same elements.
impl<T> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        Self { memory: self.memory.clone(), start: self.start, len: self.len, element: PhantomData }
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer<{}>[{}..{}]", std::any::type_name::<T>(), self.start, self.start + self.len)
    }
}

/// Returns whether [`element_bits`] can convert a `T` to an integer: whether `T` has 1, 2, 4 or 8
/// bytes, and is aligned to its size.
#[inline(always)]
pub(crate) const fn is_word<T>() -> bool {
    matches!(size_of::<T>(), 1 | 2 | 4 | 8) && align_of::<T>() == size_of::<T>()
}

/// Returns the value of type `T` that the first bytes of `bytes` represent. Ignores the other
/// bytes. [`is_word`] must be true for `T`.
#[inline(always)]
pub(crate) fn element_from_bytes<T: Element>(bytes: [u8; 8]) -> T {
    assert!(size_of::<T>() <= 8);
    // SAFETY: `bytes` has at least as many bytes as `T`, and every bit pattern is a value of `T`
    // ([E1]).
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

/// Returns an integer whose first bytes in memory are the bytes of `value`, followed by zeros. `T`
/// must satisfy [`is_word`].
#[inline(always)]
pub(crate) fn element_bits<T: Element>(value: T) -> u64 {
    // The compiler evaluates this assertion. It cannot be a `const` assertion, because callers
    // check `is_word` at run time, so this function is instantiated for larger types too.
    assert!(size_of::<T>() <= 8);
    let mut word = 0u64;
    // SAFETY: the word has at least as many bytes as the value, whose bytes are all initialised
    // ([E1]).
    unsafe { (&raw mut word).cast::<T>().write_unaligned(value) };
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MisuseKind;

    #[test]
    fn buffer_becomes_a_vec_without_a_copy_if_no_slice_remains() {
        let vec = vec![1u32, 2, 3];
        let address = vec.as_ptr();
        let buffer = Buffer::from(vec);
        let other = buffer.slice(1..).unwrap();
        assert_eq!(other.to_vec(), [2, 3]);
        let buffer = buffer.into_vec().unwrap_err();
        drop(other);
        let vec = buffer.into_vec().unwrap();
        assert_eq!((vec.as_ptr(), vec.as_slice()), (address, [1, 2, 3].as_slice()));
    }

    #[test]
    fn sole_remaining_slice_can_be_mutated_but_cannot_become_a_vec() {
        let mut buffer = Buffer::from(vec![1.0f64; 4]);
        buffer.get_mut().unwrap()[1] = 2.0;
        let mut range = buffer.slice(1..3).unwrap();
        assert!(range.get_mut().is_none());
        drop(buffer);
        assert_eq!(range.get_mut().unwrap(), [2.0, 1.0]);
        assert_eq!(range.into_vec().unwrap_err().to_vec(), [2.0, 1.0]);
    }

    #[test]
    fn buffer_copy_between_different_lengths_is_a_misuse() {
        let buffer = Buffer::<u8>::zeroed(3);
        assert!(matches!(
            buffer.copy_from(&[1, 2]).unwrap_err().misuse(),
            Some(MisuseKind::Length { found: 2, expected: 3, .. })
        ));
        assert!(matches!(
            buffer.copy_to(&mut [0; 4]).unwrap_err().misuse(),
            Some(MisuseKind::Length { found: 4, expected: 3, .. })
        ));
        assert!(matches!(buffer.slice(2..4).unwrap_err().misuse(), Some(MisuseKind::Range { start: 2, end: 4, len: 3, .. })));
        buffer.copy_from(&[7, 8, 9]).unwrap();
        assert_eq!(buffer.to_vec(), [7, 8, 9]);
    }
}
