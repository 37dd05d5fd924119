//! Views of symmetric memory at a multicast address. One access reaches every GPU of the machine.
//!
//! This module is compiled and assembled, but not yet tested on GPUs. If the field `multicast` of
//! the context is 0, the heap has no multicast address.

use crate::api::Context;
use core::marker::PhantomData;
use peerweave_types::{Plain, SymSlice, bf16, f16};

use crate::arch::multimem::{Bf16x8, F16x8, F32x4, Multimem, MultimemBits, MultimemOrd};

/// A view of elements at a multicast address. One access reaches the same element on every GPU of
/// the machine.
///
/// Every access is relaxed and has system scope. Fences, signals and barriers order these accesses
/// as they order stores to peers. The host backend has no multicast memory, so on the host
/// [`Context::get_multicast_array`] returns `None`.
///
/// ```
/// use peerweave_device::prelude::*;
///
/// /// Every PE sums one share of the elements over all GPUs, and writes the sums on every GPU.
/// #[kernel]
/// pub fn all_reduce(ctx: &Context, data: SymSlice<f32>) -> Result<(), Failed> {
///     ctx.barrier_all_block()?;
///     if let Some(everywhere) = ctx.get_multicast_array(data.chunk(ctx.my_pe() as usize, ctx.n_pes() as usize)) {
///         let vectors = everywhere.vectors();
///         for i in (gpu::thread_rank() as usize..vectors.len()).step_by(gpu::block_threads() as usize) {
///             vectors.store(i, vectors.load_add(i));
///         }
///     } else {
///         ctx.reduce_block(KernelTeam::WORLD, data, data, Sum)?;
///     }
///     ctx.barrier_all_block()
/// }
/// # fn main() {}
/// ```
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
    /// Returns a view of `of` at the heap's multicast address. Returns `None` if the heap has no
    /// such address, or if the kernel was compiled for an architecture before sm_90.
    #[inline]
    pub fn get_multicast_array<T: Plain>(&self, of: SymSlice<T>) -> Option<MulticastSlice<T>> {
        let base = self.raw().multicast;
        // On the host only the fake devices of tests have a multicast address. They support such
        // views.
        let available = crate::arch::multimem::AVAILABLE || cfg!(not(target_arch = "nvptx64"));
        if base == 0 || !available {
            return None;
        }
        Some(MulticastSlice { address: base + of.offset().0, len: of.len(), element: PhantomData })
    }
}

impl<T> MulticastSlice<T> {
    /// Returns the number of elements.
    #[inline]
    pub fn len(self) -> usize {
        self.len
    }

    /// Returns whether the view has no elements.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the multicast address of an element.
    ///
    /// # Panics
    /// If the index is out of range. On a GPU the kernel traps.
    #[inline]
    #[track_caller]
    pub fn address(self, index: usize) -> u64 {
        assert!(index < self.len, "the index lies outside the multicast slice");
        self.address + (index * size_of::<T>()) as u64
    }
}

macro_rules! loads {
    ($($(#[$doc:meta])* $name:ident = $operation:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Panics
        /// If the index is out of range. On a GPU the kernel traps.
        #[inline(always)]
        pub fn $name(self, index: usize) -> T {
            // SAFETY: `get_multicast_array` returned the view, so the architecture has such
            // accesses. The index is checked.
            unsafe { T::$operation(crate::api::views::address::<T>(self.address(index))) }
        }
    )*};
}

macro_rules! writes {
    ($($(#[$doc:meta])* $name:ident = $operation:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Panics
        /// If the index is out of range. On a GPU the kernel traps.
        #[inline(always)]
        pub fn $name(self, index: usize, value: T) {
            // SAFETY: `get_multicast_array` returned the view, so the architecture has such
            // accesses. The index is checked.
            unsafe { T::$operation(crate::api::views::address::<T>(self.address(index)), value) }
        }
    )*};
}

impl<T: Multimem> MulticastSlice<T> {
    loads! {
        /// Returns the sum of the element's values on all GPUs.
        load_add = load_add;
    }
    writes! {
        /// Replaces the element on every GPU by `value`.
        store = store;
        /// Adds `value` to the element on every GPU.
        reduce_add = reduce_add;
    }
}

impl<T: MultimemOrd> MulticastSlice<T> {
    loads! {
        /// Returns the minimum of the element's values on all GPUs.
        load_min = load_min;
        /// Returns the maximum of the element's values on all GPUs.
        load_max = load_max;
    }
    writes! {
        /// On every GPU, replaces the element by the minimum of the element and `value`.
        reduce_min = reduce_min;
        /// On every GPU, replaces the element by the maximum of the element and `value`.
        reduce_max = reduce_max;
    }
}

impl<T: MultimemBits> MulticastSlice<T> {
    loads! {
        /// Returns the bitwise AND of the element's values on all GPUs.
        load_and = load_and;
        /// Returns the bitwise OR of the element's values on all GPUs.
        load_or = load_or;
        /// Returns the bitwise XOR of the element's values on all GPUs.
        load_xor = load_xor;
    }
}

/// Implements the method that converts a view of elements to a view of 16-byte vectors.
macro_rules! vectors {
    ($($t:ty, $vector:ident, $lanes:literal;)*) => {$(
        impl MulticastSlice<$t> {
            #[doc = concat!("Returns a view of the elements as vectors of ", $lanes, " elements. One 16-byte access transfers one vector. The view omits elements after the last whole vector.")]
            ///
            /// # Panics
            /// If the first element is not aligned to 16 bytes. On a GPU the kernel traps.
            #[inline]
            #[track_caller]
            pub fn vectors(self) -> MulticastSlice<$vector> {
                assert!(self.address.is_multiple_of(16), "the first element of the multicast slice is not aligned to 16 bytes");
                MulticastSlice { address: self.address, len: self.len / $lanes, element: PhantomData }
            }
        }
    )*};
}

vectors! {
    f32, F32x4, 4;
    f16, F16x8, 8;
    bf16, Bf16x8, 8;
}
