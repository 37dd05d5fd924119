//! Views of memory that can be the source of a put or the destination of a get: symmetric memory,
//! device memory, shared memory, and slices in a thread's own memory. The trait [`Elements`] reads
//! and writes single elements of a view.

use super::Context;
use super::value::{self, Generic, Global};
use crate::gpu;
use core::ops::RangeBounds;
use peerweave_types::{DeviceSlice, Plain, SymSlice};

/// A view of elements in a block's shared memory. Each thread of the block may have a copy of the
/// view. The threads must order their accesses by barriers.
pub struct SharedSlice<T> {
    pointer: *mut T,
    len: usize,
}

impl<T> Clone for SharedSlice<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedSlice<T> {}

impl<T: Plain> SharedSlice<T> {
    /// Returns a view of `len` elements at a pointer. To create a view without unsafe code, use
    /// [`shared_array`](crate::shared_array) or [`SharedSlice::dynamic`].
    ///
    /// # Safety
    /// `pointer` points to `len` aligned elements in shared memory of this block. The elements
    /// exist until the block ends, and are accessed only through views of this type.
    #[inline(always)]
    pub const unsafe fn from_raw(pointer: *mut T, len: usize) -> Self {
        Self { pointer, len }
    }

    /// Returns a view of the block's dynamic shared memory, whose size the launch specifies. The
    /// initial content of the memory is unspecified.
    #[inline(always)]
    pub fn dynamic() -> Self {
        let (pointer, bytes) = gpu::dynamic_shared();
        const { assert!(align_of::<T>() <= 128, "the alignment of the element type exceeds 128 bytes") };
        Self { pointer: pointer.cast(), len: bytes / size_of::<T>() }
    }

    /// Returns the number of elements.
    #[inline(always)]
    pub fn len(self) -> usize {
        self.len
    }

    /// Returns whether the view has no elements.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first element.
    #[inline(always)]
    pub fn as_ptr(self) -> *mut T {
        self.pointer
    }

    /// Returns a view of the elements in a range of indices; `None` if the range ends before it
    /// starts, or extends beyond the view.
    #[inline]
    pub fn get(self, range: impl RangeBounds<usize>) -> Option<Self> {
        // SAFETY: the slice is used only to compute the range. No element is accessed through it.
        let part = unsafe { DeviceSlice::<T>::from_raw(self.pointer.expose_provenance() as u64, self.len) }.get(range)?;
        let skipped = (part.address() as usize - self.pointer.addr()) / size_of::<T>().max(1);
        Some(Self { pointer: self.pointer.wrapping_add(skipped), len: part.len() })
    }

    /// Returns a view of the elements in a range of indices.
    ///
    /// # Panics
    /// If the range ends before it starts, or extends beyond the view. On a GPU the kernel traps.
    #[inline]
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> Self {
        match self.get(range) {
            Some(part) => part,
            None => panic!("the range lies outside the shared slice"),
        }
    }

    /// Returns the element at an index.
    ///
    /// # Panics
    /// If the index is out of range. On a GPU the kernel traps.
    #[inline(always)]
    #[track_caller]
    pub fn read(self, index: usize) -> T {
        check_index(index, self.len, "shared slice");
        // SAFETY: the index is below the length, and the caller of `from_raw` promised that many
        // aligned elements.
        unsafe { value::load::<T, Generic>(self.pointer.add(index)) }
    }

    /// Writes the element at an index.
    ///
    /// # Panics
    /// As for [`Self::read`].
    #[inline(always)]
    #[track_caller]
    pub fn write(self, index: usize, value: T) {
        check_index(index, self.len, "shared slice");
        // SAFETY: as in `read`.
        unsafe { value::store::<T, Generic>(self.pointer.add(index), value) }
    }
}

/// Panics if the index is not below the length. On a GPU the panic is a trap, which prints no text.
/// So on a GPU no message is formatted.
#[inline(always)]
#[track_caller]
fn check_index(index: usize, len: usize, slice: &str) {
    if index < len {
        return;
    }
    if cfg!(target_arch = "nvptx64") {
        panic!("the index lies outside the slice");
    }
    panic!("index {index} lies outside the {len} elements of the {slice}");
}

/// A view whose elements a kernel reads and writes by weak accesses. If another thread writes the
/// same element, signals, barriers or syncs must order the two accesses.
pub trait Elements<T>: Copy {
    /// Returns the element at an index.
    ///
    /// # Panics
    /// If the index is out of range. On a GPU the kernel traps.
    fn read(self, index: usize) -> T;

    /// Writes the element at an index.
    ///
    /// # Panics
    /// As for [`Self::read`].
    fn write(self, index: usize, value: T);
}

impl<T: Plain> Elements<T> for DeviceSlice<T> {
    #[inline(always)]
    #[track_caller]
    fn read(self, index: usize) -> T {
        check_index(index, self.len(), "device slice");
        // SAFETY: the index is below the length, and the caller of `DeviceSlice::from_raw` promised
        // that many accessible elements.
        unsafe { value::load::<T, Global>(address::<T>(self.address()).add(index)) }
    }

    #[inline(always)]
    #[track_caller]
    fn write(self, index: usize, value: T) {
        check_index(index, self.len(), "device slice");
        // SAFETY: as in `read`.
        unsafe { value::store::<T, Global>(address::<T>(self.address()).add(index), value) }
    }
}

/// Converts an address to a pointer. The address was passed by the host, or was computed from
/// addresses in the host's tables.
#[inline(always)]
pub(crate) fn address<T>(address: u64) -> *mut T {
    core::ptr::with_exposed_provenance_mut(address as usize)
}

mod sealed {
    pub trait Sealed {}
}

/// The source of a put: this PE's symmetric memory, the memory of this PE's GPU, the block's shared
/// memory, or a slice in the thread's own memory.
///
/// Other crates cannot implement this trait. If the target PE is reached through NVSHMEM, the
/// source must be symmetric memory.
pub trait Source<T>: sealed::Sealed {
    /// Whether the elements of a view of this type are always in global memory.
    #[doc(hidden)]
    const GLOBAL: bool;
    #[doc(hidden)]
    fn start(&self, context: &Context) -> *const T;
    #[doc(hidden)]
    fn count(&self) -> usize;
}

/// The destination of a get: memory of any kind that [`Source`] lists. Other crates cannot
/// implement this trait.
pub trait Target<T>: sealed::Sealed {
    /// Whether the elements of a view of this type are always in global memory.
    #[doc(hidden)]
    const GLOBAL: bool;
    #[doc(hidden)]
    fn start_mut(&mut self, context: &Context) -> *mut T;
    #[doc(hidden)]
    fn count(&self) -> usize;
}

/// Implements [`Source`] and [`Target`] for a view that is `Copy`.
macro_rules! operand {
    ($view:ident, $global:literal, |$this:ident, $context:ident| $start:expr) => {
        impl<T> sealed::Sealed for $view<T> {}

        impl<T: Plain> Source<T> for $view<T> {
            const GLOBAL: bool = $global;

            #[inline(always)]
            fn start(&self, $context: &Context) -> *const T {
                let $this = self;
                $start
            }

            #[inline(always)]
            fn count(&self) -> usize {
                self.len()
            }
        }

        impl<T: Plain> Target<T> for $view<T> {
            const GLOBAL: bool = $global;

            #[inline(always)]
            fn start_mut(&mut self, $context: &Context) -> *mut T {
                let $this = &*self;
                $start
            }

            #[inline(always)]
            fn count(&self) -> usize {
                self.len()
            }
        }
    };
}

operand!(SymSlice, true, |this, context| address(context.my_base() + this.offset().0));
operand!(DeviceSlice, true, |this, _context| address(this.address()));
operand!(SharedSlice, false, |this, _context| this.pointer);

impl<T> sealed::Sealed for &[T] {}
impl<T> sealed::Sealed for &mut [T] {}
impl<T, const N: usize> sealed::Sealed for &[T; N] {}
impl<T, const N: usize> sealed::Sealed for &mut [T; N] {}

macro_rules! slice_source {
    ($([$($generics:tt)*] $t:ty;)*) => {$(
        impl<$($generics)*> Source<T> for $t {
            const GLOBAL: bool = false;

            #[inline(always)]
            fn start(&self, _context: &Context) -> *const T {
                self.as_ptr()
            }

            #[inline(always)]
            fn count(&self) -> usize {
                self.len()
            }
        }
    )*};
}

macro_rules! slice_target {
    ($([$($generics:tt)*] $t:ty;)*) => {$(
        impl<$($generics)*> Target<T> for $t {
            const GLOBAL: bool = false;

            #[inline(always)]
            fn start_mut(&mut self, _context: &Context) -> *mut T {
                self.as_mut_ptr()
            }

            #[inline(always)]
            fn count(&self) -> usize {
                self.len()
            }
        }
    )*};
}

slice_source!([T: Plain] &[T]; [T: Plain, const N: usize] &[T; N];);
slice_target!([T: Plain] &mut [T]; [T: Plain, const N: usize] &mut [T; N];);
