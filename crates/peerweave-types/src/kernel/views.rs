//! Views of memory, which the host passes to kernels. A view holds the position and the number of
//! elements.
//!
//! A view is plain data and keeps no memory allocated. A launch checks that the memory of each view
//! exists, and keeps the memory allocated until the kernel has ended. The functions that read and
//! write elements are in `peerweave-device`.

use crate::SymOffset;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Bound, RangeBounds};

/// A type whose values can be transferred between PEs as bytes.
///
/// # Safety
/// Every bit pattern of `size_of::<Self>()` bytes is a valid value. The type has no padding, and
/// contains no pointer or reference.
#[diagnostic::on_unimplemented(
    message = "values of `{Self}` cannot be transferred between PEs as bytes",
    note = "the elements of a view are integers, floats, `Bool`, complex numbers (feature `num-complex`), arrays of these, and structs with `#[derive(Element)]` and `#[repr(C)]`"
)]
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($t:ty),* $(,)?) => {$(
        // SAFETY: the type is a number, or a transparent wrapper of a number: every bit pattern is
        // valid and there is no padding.
        unsafe impl Plain for $t {}
    )*};
}

plain!(i8, u8, i16, u16, i32, u32, i64, u64, i128, u128, isize, usize, f32, f64);
plain!(crate::f16, crate::bf16, crate::F8E4M3, crate::F8E5M2, crate::Bool);

// SAFETY: this version of `num_complex` documents that `Complex<f32>` is `repr(C)` and has the
// layout of `[f32; 2]`.
#[cfg(feature = "num-complex")]
unsafe impl Plain for num_complex::Complex<f32> {}
// SAFETY: this version of `num_complex` documents that `Complex<f64>` is `repr(C)` and has the
// layout of `[f64; 2]`.
#[cfg(feature = "num-complex")]
unsafe impl Plain for num_complex::Complex<f64> {}

// SAFETY: an array has no padding between elements, and each element is plain.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// A view of `len` elements that lie at the same offset in every PE's symmetric heap.
///
/// A kernel takes a view as an argument, and passes the view to `put`, `get` and other calls.
/// Slicing a view accesses no memory.
///
/// ```
/// use peerweave_types::{SymOffset, SymSlice};
///
/// // SAFETY: never handed to a kernel.
/// let all = unsafe { SymSlice::<f32>::from_raw(SymOffset(4096), 1024) };
/// let second_half = all.slice(512..);
/// assert_eq!((second_half.offset(), second_half.len()), (SymOffset(4096 + 2048), 512));
/// assert!(all.get(1000..1025).is_none());
/// ```
#[repr(C)]
pub struct SymSlice<T> {
    offset: SymOffset,
    len: u64,
    element: PhantomData<fn() -> T>,
}

/// A view of `len` elements at an address that this device can access. The elements lie in this
/// device's memory, or in a peer's memory that is mapped.
///
/// ```
/// use peerweave_types::DeviceSlice;
///
/// // SAFETY: never handed to a kernel.
/// let all = unsafe { DeviceSlice::<u64>::from_raw(0x7000, 8) };
/// assert_eq!((all.slice(2..4).address(), all.slice(2..4).len()), (0x7010, 2));
/// ```
#[repr(C)]
pub struct DeviceSlice<T> {
    address: u64,
    len: u64,
    element: PhantomData<fn() -> T>,
}

/// Formats a range of indices as Rust source code writes it, for example `2..=4`.
struct Shown((Bound<usize>, Bound<usize>));

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.0 {
            Bound::Included(start) => write!(f, "{start}..")?,
            Bound::Excluded(before) => write!(f, "{}..", before as u128 + 1)?,
            Bound::Unbounded => f.write_str("..")?,
        }
        match self.0.1 {
            Bound::Included(last) => write!(f, "={last}"),
            Bound::Excluded(end) => write!(f, "{end}"),
            Bound::Unbounded => Ok(()),
        }
    }
}

/// Defines the methods that [`SymSlice`] and [`DeviceSlice`] have in common. `$word` is the name of
/// the type in messages of panics.
macro_rules! view {
    ($name:ident, $word:literal) => {
        impl<T> $name<T> {
            /// Returns the number of elements in the view.
            #[inline]
            pub const fn len(self) -> usize {
                self.len as usize
            }

            /// Returns whether the view has no elements.
            #[inline]
            pub const fn is_empty(self) -> bool {
                self.len == 0
            }

            /// Returns the size of all elements in the view together, in bytes.
            #[inline]
            pub const fn size_bytes(self) -> u64 {
                self.len * size_of::<T>() as u64
            }

            /// Returns a view of the elements in a range of indices.
            ///
            /// # Panics
            /// Panics if the range ends before it starts, or exceeds the view. On a GPU, a panic
            /// traps; to avoid a panic, call [`Self::get`].
            #[inline]
            #[track_caller]
            pub fn slice(self, range: impl RangeBounds<usize>) -> Self {
                // A trap on a GPU shows no text, so only the host formats the range.
                if cfg!(not(target_arch = "nvptx64")) {
                    let range = (range.start_bound().cloned(), range.end_bound().cloned());
                    if self.get(range).is_none() {
                        panic!(concat!("range {} of a ", $word, " lies outside its {} elements"), Shown(range), self.len);
                    }
                }
                match self.get(range) {
                    Some(part) => part,
                    None => panic!(concat!("range of a ", $word, " lies outside its {} elements"), self.len),
                }
            }

            /// Returns a view of the elements in a range of indices. Returns `None` if the range
            /// ends before it starts, or exceeds the view.
            #[inline]
            pub fn get(self, range: impl RangeBounds<usize>) -> Option<Self> {
                let start = match range.start_bound() {
                    Bound::Included(&start) => start as u64,
                    Bound::Excluded(&before) => (before as u64).checked_add(1)?,
                    Bound::Unbounded => 0,
                };
                let end = match range.end_bound() {
                    Bound::Included(&last) => (last as u64).checked_add(1)?,
                    Bound::Excluded(&end) => end as u64,
                    Bound::Unbounded => self.len,
                };
                if start > end || end > self.len {
                    return None;
                }
                Some(self.part(start, end - start))
            }

            /// Returns a view of the element at `index`.
            ///
            /// # Panics
            /// Panics if `index` is not below the number of elements. On a GPU, a panic traps.
            #[inline]
            #[track_caller]
            pub fn at(self, index: usize) -> Self {
                if cfg!(not(target_arch = "nvptx64")) && index as u64 >= self.len {
                    panic!(concat!("index {} of a ", $word, " lies outside its {} elements"), index, self.len);
                }
                self.slice(index..index + 1)
            }

            /// Returns a view of the first `len` elements, or of all elements if there are fewer.
            #[inline]
            pub fn truncate(self, len: usize) -> Self {
                self.part(0, self.len.min(len as u64))
            }

            /// Divides the view into `parts` parts of equal length, and returns part `index`. If
            /// the length is not a multiple of `parts`, the elements after the last part belong to
            /// no part.
            ///
            /// # Panics
            /// Panics if `index >= parts`.
            #[inline]
            #[track_caller]
            pub fn chunk(self, index: usize, parts: usize) -> Self {
                assert!(index < parts, "chunk: the index is out of range, expected an index below the number of parts");
                let each = self.len / parts as u64;
                self.part(index as u64 * each, each)
            }
        }

        impl<T> Clone for $name<T> {
            #[inline]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $name<T> {}

        impl<T> PartialEq for $name<T> {
            fn eq(&self, other: &Self) -> bool {
                self.start() == other.start() && self.len == other.len
            }
        }

        impl<T> Eq for $name<T> {}

        impl<T> fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("start", &self.start()).field("len", &self.len).finish()
            }
        }
    };
}

view!(SymSlice, "symmetric slice");
view!(DeviceSlice, "device slice");

impl<T> SymSlice<T> {
    /// Creates a view of `len` elements at `offset`.
    ///
    /// # Safety
    /// If the view is passed to a kernel: the elements lie within the symmetric heap of every PE,
    /// belong to the caller, and stay allocated until the kernel has ended. The offset is a
    /// multiple of the alignment of `T`.
    #[inline]
    pub const unsafe fn from_raw(offset: SymOffset, len: usize) -> Self {
        Self { offset, len: len as u64, element: PhantomData }
    }

    /// Returns the offset of the first element, which is the same in every PE's heap.
    #[inline]
    pub const fn offset(self) -> SymOffset {
        self.offset
    }

    #[inline]
    const fn start(&self) -> u64 {
        self.offset.0
    }

    #[inline]
    const fn part(self, start: u64, len: u64) -> Self {
        Self { offset: self.offset.plus(start * size_of::<T>() as u64), len, element: PhantomData }
    }

    /// Returns a view of the same memory as elements of type `U`. The alignment of `U` must not
    /// exceed the alignment of `T`. The view omits an incomplete element at the end.
    #[inline]
    pub fn cast<U: Plain>(self) -> SymSlice<U>
    where
        T: Plain,
    {
        const { assert!(align_of::<U>() <= align_of::<T>(), "cast: the new type has a larger alignment than the old type") };
        SymSlice { offset: self.offset, len: self.size_bytes() / size_of::<U>() as u64, element: PhantomData }
    }
}

impl<T> DeviceSlice<T> {
    /// Creates a view of `len` elements at `address`.
    ///
    /// # Safety
    /// If the view is passed to a kernel: the elements lie in memory that the device can access at
    /// this address, belong to the caller, and stay allocated until the kernel has ended. Until
    /// then, all other accesses to the elements are atomic or volatile. The address is a multiple
    /// of the alignment of `T`.
    #[inline]
    pub const unsafe fn from_raw(address: u64, len: usize) -> Self {
        Self { address, len: len as u64, element: PhantomData }
    }

    /// Returns the address of the first element.
    #[inline]
    pub const fn address(self) -> u64 {
        self.address
    }

    #[inline]
    const fn start(&self) -> u64 {
        self.address
    }

    #[inline]
    const fn part(self, start: u64, len: u64) -> Self {
        Self { address: self.address + start * size_of::<T>() as u64, len, element: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sym(len: usize) -> SymSlice<u32> {
        // SAFETY: never handed to a kernel.
        unsafe { SymSlice::from_raw(SymOffset(64), len) }
    }

    #[test]
    fn memory_views_have_the_size_of_two_64_bit_words() {
        assert_eq!((size_of::<SymSlice<u8>>(), align_of::<SymSlice<u8>>()), (16, 8));
        assert_eq!((size_of::<DeviceSlice<u8>>(), align_of::<DeviceSlice<u8>>()), (16, 8));
    }

    #[test]
    fn view_ranges_select_elements_like_ranges_of_rust_slices() {
        let ten = sym(10);
        assert_eq!(ten.slice(..), ten);
        assert_eq!(ten.slice(2..=4), ten.slice(2..5));
        assert_eq!(ten.slice(2..5).offset(), SymOffset(72));
        assert_eq!(ten.slice(10..).len(), 0);
        assert_eq!(ten.get(11..), None);
        #[expect(clippy::reversed_empty_ranges, reason = "the test checks this")]
        let reversed = ten.get(3..2);
        assert_eq!(reversed, None);
        assert_eq!(ten.get(0..=usize::MAX), None);
        assert_eq!(ten.chunk(2, 3), ten.slice(6..9));
        assert_eq!(ten.truncate(99), ten);
        assert_eq!(ten.cast::<u8>().len(), 40);
        assert_eq!(ten.cast::<[u8; 3]>().len(), 13);
    }

    #[test]
    #[should_panic(expected = "range 5..11 of a symmetric slice lies outside its 10 elements")]
    fn slice_of_a_range_beyond_the_view_panics_with_the_range() {
        let _ = sym(10).slice(5..11);
    }

    #[test]
    #[should_panic(expected = "index 10 of a symmetric slice lies outside its 10 elements")]
    fn index_beyond_the_view_panics_with_the_index() {
        let _ = sym(10).at(10);
    }
}
