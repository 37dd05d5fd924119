//! Views of memory through a multicast address, whose accesses reach every GPU of the machine at once.
//!
//! Compiled and assembled, not yet run: a context whose `multicast` is 0 gives no such view.

use super::Context;
use core::marker::PhantomData;
use peerweave_types::{Plain, SymSlice};

#[cfg(target_arch = "nvptx64")]
use crate::arch::multimem::{Multimem, MultimemBits, MultimemOrd};

/// Elements at a multicast address: one access reaches the same elements of every GPU of the machine.
///
/// Every access is relaxed and of system scope: fences, signals and barriers order it as they order stores to peers. The host has
/// no such memory: there the view cannot be had.
pub struct MulticastSlice<T> {
    address: u64,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for MulticastSlice<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for MulticastSlice<T> {}

impl Context {
    /// The view of symmetric memory through the multicast address of the heap; `None` where there is none, or the device is older
    /// than sm_90.
    #[inline]
    pub fn get_multicast_array<T: Plain>(&self, of: SymSlice<T>) -> Option<MulticastSlice<T>> {
        let base = self.raw().multicast;
        #[cfg(target_arch = "nvptx64")]
        let available = crate::arch::multimem::AVAILABLE;
        #[cfg(not(target_arch = "nvptx64"))]
        let available = false;
        if base == 0 || !available {
            return None;
        }
        Some(MulticastSlice { address: base + of.offset().0, len: of.len(), element: PhantomData })
    }
}

impl<T> MulticastSlice<T> {
    /// Number of elements.
    #[inline]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The multicast address of an element.
    ///
    /// # Panics
    /// Where the index is not below the length; on a GPU that is a trap.
    #[inline]
    #[track_caller]
    pub fn address(self, index: usize) -> u64 {
        assert!(index < self.len, "index lies outside the multicast slice");
        self.address + (index * size_of::<T>()) as u64
    }
}

#[cfg(target_arch = "nvptx64")]
macro_rules! loads {
    ($($(#[$doc:meta])* $name:ident = $operation:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Panics
        /// Where the index is not below the length: a trap.
        #[inline(always)]
        pub fn $name(self, index: usize) -> T {
            // SAFETY: `get_multicast_array` gave the address where the architecture has such accesses, and the index is checked.
            unsafe { T::$operation(super::views::address::<T>(self.address(index))) }
        }
    )*};
}

#[cfg(target_arch = "nvptx64")]
macro_rules! writes {
    ($($(#[$doc:meta])* $name:ident = $operation:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Panics
        /// Where the index is not below the length: a trap.
        #[inline(always)]
        pub fn $name(self, index: usize, value: T) {
            // SAFETY: `get_multicast_array` gave the address where the architecture has such accesses, and the index is checked.
            unsafe { T::$operation(super::views::address::<T>(self.address(index)), value) }
        }
    )*};
}

#[cfg(target_arch = "nvptx64")]
impl<T: Multimem> MulticastSlice<T> {
    loads! {
        /// The sum of the element over all GPUs.
        load_add = load_add;
    }
    writes! {
        /// Writes the element on every GPU.
        store = store;
        /// Adds to the element on every GPU.
        reduce_add = reduce_add;
    }
}

#[cfg(target_arch = "nvptx64")]
impl<T: MultimemOrd> MulticastSlice<T> {
    loads! {
        /// The smallest of the element over all GPUs.
        load_min = load_min;
        /// The largest of the element over all GPUs.
        load_max = load_max;
    }
    writes! {
        /// Replaces the element on every GPU by the smaller of it and the value.
        reduce_min = reduce_min;
        /// Replaces the element on every GPU by the larger of it and the value.
        reduce_max = reduce_max;
    }
}

#[cfg(target_arch = "nvptx64")]
impl<T: MultimemBits> MulticastSlice<T> {
    loads! {
        /// Bitwise and of the element over all GPUs.
        load_and = load_and;
        /// Bitwise or of the element over all GPUs.
        load_or = load_or;
        /// Bitwise exclusive or of the element over all GPUs.
        load_xor = load_xor;
    }
}
