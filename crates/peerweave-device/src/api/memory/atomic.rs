//! Atomic operations on one element of a PE's symmetric memory: the first element of the slice
//! `of`.
//!
//! The methods have the names of OpenSHMEM. Every operation has system scope. A method without the
//! suffix `_relaxed` acquires if it returns the element, and releases if it changes the element. A
//! `_relaxed` method orders nothing. Over the network, even two relaxed operations of one thread on
//! the same word are unordered; [`Context::fence`] orders them.
//!
//! A method that returns nothing does not wait for the operation, except if it adds to a float over
//! the network. If the PE is unreachable, the failure is written to the status, and a method that
//! returns the element returns a value with all bits zero.

use crate::api::Context;
use crate::api::bits::{Bits, KernelAdd, KernelAtomic, KernelInteger};
use crate::api::context::Reach;
use crate::api::views::address;
use crate::gpu::{Access, AcqRel, Fence, Reduce, Relaxed, Release, Rmw, Sys};
use peerweave_types::{KernelOp, Plain, SymSlice};

impl Context {
    /// Returns the address for an atomic operation on `of[0]` on `pe`; `None` if `pe` is
    /// unreachable. `Ok` is a pointer to the element of a mapped PE. `Err` is the corresponding
    /// address in this PE's heap, for an operation over the network.
    ///
    /// Before access to a mapped PE, waits for this thread's bulk stores. Before access over the
    /// network, makes a fence if `strong` is true.
    #[inline(always)]
    fn word<T: Plain>(&self, of: SymSlice<T>, pe: u32, strong: bool) -> Option<Result<*mut T, u64>> {
        assert!(!of.is_empty(), "the slice of an atomic operation is empty, expected at least one element");
        match self.reach(KernelOp::Atomic, pe) {
            Ok(Reach::Mapped(base)) => {
                // Waits until the earlier bulk stores of this thread are complete.
                self.finish_bulk();
                Some(Ok(address(base + of.offset().0)))
            }
            Ok(Reach::Network) => {
                if strong {
                    self.fence();
                }
                Some(Err(self.my_base() + of.offset().0))
            }
            Err(_) => None,
        }
    }
}

/// Returns `value`, which an operation has read over the network. If `strong` is true, a fence
/// makes the read an acquire.
#[inline(always)]
fn acquired<T>(value: T, strong: bool) -> T {
    if strong {
        <Sys as Fence>::acq_rel();
    }
    value
}

/// Implements atomic operations that return the previous value of an element. Each operation
/// becomes two methods: one acquires and releases, and one orders nothing.
macro_rules! fetching {
    ($bound:ident: $($(#[$doc:meta])* $strong:ident, $relaxed:ident($($argument:ident),*) = $operation:ident, $network:ident;)*) => {$(
        fetching!(@ $bound, $(#[$doc])* "Acquire and release: the read of the previous value acquires, and the write of the new value releases.", AcqRel true, $strong($($argument),*) = $operation, $network);
        fetching!(@ $bound, $(#[$doc])* "Orders nothing.", Relaxed false, $relaxed($($argument),*) = $operation, $network);
    )*};
    (@ $bound:ident, $(#[$doc:meta])* $order_doc:literal, $order:ident $is_strong:literal, $name:ident($($argument:ident),*) = $operation:ident,
        $network:ident) => {
        $(#[$doc])*
        /// Returns the previous value of the element.
        #[doc = concat!("\n# Ordering\n", $order_doc)]
        ///
        /// # Panics
        /// If the slice `of` is empty. On a GPU the kernel traps.
        #[inline(always)]
        pub fn $name<T: $bound>(&self, of: SymSlice<T>, $($argument: T,)* pe: u32) -> T {
            match self.word(of, pe, $is_strong) {
                // SAFETY: `SymSlice` promises an aligned element in the heap of every PE, and the
                // peer is mapped.
                Some(Ok(word)) => T::from_bits(unsafe {
                    <T::Bits as Rmw<Sys, $order>>::$operation(word.cast(), $($argument.to_bits()),*)
                }),
                Some(Err(word)) => {
                    let found = <T::Bits as Bits>::$network(word, $($argument.to_bits(),)* pe as i32);
                    T::from_bits(acquired(found, $is_strong))
                }
                None => T::from_word(0),
            }
        }
    };
}

/// Implements atomic operations that return nothing. Each operation becomes two methods: one
/// releases, and one orders nothing.
macro_rules! reducing {
    ($($(#[$doc:meta])* $strong:ident, $relaxed:ident = $operation:ident, $network:ident;)*) => {$(
        reducing!(@ $(#[$doc])* "Release.", Release true, $strong = $operation, $network);
        reducing!(@ $(#[$doc])* "Orders nothing.", Relaxed false, $relaxed = $operation, $network);
    )*};
    (@ $(#[$doc:meta])* $order_doc:literal, $order:ident $is_strong:literal, $name:ident = $operation:ident, $network:ident) => {
        $(#[$doc])*
        #[doc = concat!("\n# Ordering\n", $order_doc)]
        ///
        /// # Panics
        /// If the slice `of` is empty. On a GPU the kernel traps.
        #[inline(always)]
        pub fn $name<T: KernelInteger>(&self, of: SymSlice<T>, value: T, pe: u32) {
            match self.word(of, pe, $is_strong) {
                // SAFETY: `SymSlice` promises an aligned element in the heap of every PE, and the
                // peer is mapped.
                Some(Ok(word)) => unsafe { <T::Bits as Reduce<Sys, $order>>::$operation(word.cast(), value.to_bits()) },
                Some(Err(word)) => <T::Bits as Bits>::$network(word, value.to_bits(), pe as i32),
                None => {}
            }
        }
    };
}

/// Implements atomic additions to integers and floats.
macro_rules! adding {
    ($fetch_add:ident, $add:ident, $fetch_inc:ident, $inc:ident, $strong:literal, $fetch_doc:literal, $doc:literal) => {
        /// Adds `value` to `of[0]` on `pe`, and returns the previous value. An integer sum wraps. A
        /// float sum is rounded to nearest.
        ///
        /// On a GPU most additions are one instruction. Two kinds of additions are a loop of
        /// compare-and-swaps: additions to `bf16` elements before sm_90, and additions to floats
        /// over the network.
        #[doc = concat!("\n# Ordering\n", $fetch_doc)]
        ///
        /// # Panics
        /// If the slice `of` is empty. On a GPU the kernel traps.
        #[inline(always)]
        pub fn $fetch_add<T: KernelAdd>(&self, of: SymSlice<T>, value: T, pe: u32) -> T {
            match self.word(of, pe, $strong) {
                // SAFETY: `SymSlice` promises an aligned element in the heap of every PE, and the
                // peer is mapped.
                Some(Ok(word)) => unsafe { T::fetch_add_at(word, value, $strong) },
                Some(Err(word)) => acquired(T::network_fetch_add(self, word, value, pe), $strong),
                None => T::from_word(0),
            }
        }

        /// Adds `value` to `of[0]` on `pe`, like [`Self::atomic_fetch_add`], but returns nothing.
        #[doc = concat!("\n# Ordering\n", $doc)]
        ///
        /// # Panics
        /// If the slice `of` is empty. On a GPU the kernel traps.
        #[inline(always)]
        pub fn $add<T: KernelAdd>(&self, of: SymSlice<T>, value: T, pe: u32) {
            match self.word(of, pe, $strong) {
                // SAFETY: `SymSlice` promises an aligned element in the heap of every PE, and the
                // peer is mapped.
                Some(Ok(word)) => unsafe { T::add_at(word, value, $strong) },
                Some(Err(word)) => T::network_add(self, word, value, pe),
                None => {}
            }
        }

        /// Adds one to `of[0]` on `pe`, and returns the previous value.
        #[doc = concat!("\n# Ordering\n", $fetch_doc)]
        ///
        /// # Panics
        /// If the slice `of` is empty. On a GPU the kernel traps.
        #[inline(always)]
        pub fn $fetch_inc<T: KernelAdd>(&self, of: SymSlice<T>, pe: u32) -> T {
            self.$fetch_add(of, T::ONE, pe)
        }

        /// Adds one to `of[0]` on `pe`, and returns nothing.
        #[doc = concat!("\n# Ordering\n", $doc)]
        ///
        /// # Panics
        /// If the slice `of` is empty. On a GPU the kernel traps.
        #[inline(always)]
        pub fn $inc<T: KernelAdd>(&self, of: SymSlice<T>, pe: u32) {
            self.$add(of, T::ONE, pe);
        }
    };
}

impl Context {
    adding!(
        atomic_fetch_add,
        atomic_add,
        atomic_fetch_inc,
        atomic_inc,
        true,
        "Acquire and release: the read of the previous value acquires, and the write of the new value releases.",
        "Release."
    );
    adding!(
        atomic_fetch_add_relaxed,
        atomic_add_relaxed,
        atomic_fetch_inc_relaxed,
        atomic_inc_relaxed,
        false,
        "Orders nothing.",
        "Orders nothing."
    );

    fetching! { KernelAtomic:
        /// Replaces `of[0]` on `pe` by `value`.
        atomic_swap, atomic_swap_relaxed(value) = swap, network_swap;
        /// Replaces `of[0]` on `pe` by `new` if `of[0]` equals `current` bit for bit.
        atomic_compare_swap, atomic_compare_swap_relaxed(current, new) = compare_swap, network_compare_swap;
    }

    fetching! { KernelInteger:
        /// Replaces `of[0]` on `pe` by the bitwise AND of `of[0]` and `value`.
        atomic_fetch_and, atomic_fetch_and_relaxed(value) = fetch_and, network_fetch_and;
        /// Replaces `of[0]` on `pe` by the bitwise OR of `of[0]` and `value`.
        atomic_fetch_or, atomic_fetch_or_relaxed(value) = fetch_or, network_fetch_or;
        /// Replaces `of[0]` on `pe` by the bitwise XOR of `of[0]` and `value`.
        atomic_fetch_xor, atomic_fetch_xor_relaxed(value) = fetch_xor, network_fetch_xor;
    }

    reducing! {
        /// Replaces `of[0]` on `pe` by the bitwise AND of `of[0]` and `value`.
        atomic_and, atomic_and_relaxed = and, network_and;
        /// Replaces `of[0]` on `pe` by the bitwise OR of `of[0]` and `value`.
        atomic_or, atomic_or_relaxed = or, network_or;
        /// Replaces `of[0]` on `pe` by the bitwise XOR of `of[0]` and `value`.
        atomic_xor, atomic_xor_relaxed = xor, network_xor;
    }

    /// Returns `of[0]` on `pe`.
    ///
    /// # Ordering
    /// Acquire: writes that the writer of the value has released are visible after the call.
    ///
    /// # Panics
    /// If the slice `of` is empty. On a GPU the kernel traps.
    #[inline(always)]
    pub fn atomic_fetch<T: KernelAtomic>(&self, of: SymSlice<T>, pe: u32) -> T {
        match self.word(of, pe, true) {
            // SAFETY: `SymSlice` promises an aligned element in the heap of every PE, and the peer
            // is mapped.
            Some(Ok(word)) => T::from_bits(unsafe { <T::Bits as Access<Sys>>::load_acquire(word.cast_const().cast()) }),
            Some(Err(word)) => T::from_bits(acquired(<T::Bits as Bits>::network_fetch(word, pe as i32), true)),
            None => T::from_word(0),
        }
    }

    /// Returns `of[0]` on `pe`.
    ///
    /// # Ordering
    /// Orders nothing.
    ///
    /// # Panics
    /// If the slice `of` is empty. On a GPU the kernel traps.
    #[inline(always)]
    pub fn atomic_fetch_relaxed<T: KernelAtomic>(&self, of: SymSlice<T>, pe: u32) -> T {
        match self.word(of, pe, false) {
            // SAFETY: `SymSlice` promises an aligned element in the heap of every PE, and the peer
            // is mapped.
            Some(Ok(word)) => T::from_bits(unsafe { <T::Bits as Access<Sys>>::load_relaxed(word.cast_const().cast()) }),
            Some(Err(word)) => T::from_bits(<T::Bits as Bits>::network_fetch(word, pe as i32)),
            None => T::from_word(0),
        }
    }

    /// Replaces `of[0]` on `pe` by `value`.
    ///
    /// # Ordering
    /// Release: a thread that acquires the value sees earlier writes of this thread.
    ///
    /// # Panics
    /// If the slice `of` is empty. On a GPU the kernel traps.
    #[inline(always)]
    pub fn atomic_set<T: KernelAtomic>(&self, of: SymSlice<T>, value: T, pe: u32) {
        match self.word(of, pe, true) {
            // SAFETY: `SymSlice` promises an aligned element in the heap of every PE, and the peer
            // is mapped.
            Some(Ok(word)) => unsafe { <T::Bits as Access<Sys>>::store_release(word.cast(), value.to_bits()) },
            Some(Err(word)) => <T::Bits as Bits>::network_set(word, value.to_bits(), pe as i32),
            None => {}
        }
    }

    /// Replaces `of[0]` on `pe` by `value`.
    ///
    /// # Ordering
    /// Orders nothing.
    ///
    /// # Panics
    /// If the slice `of` is empty. On a GPU the kernel traps.
    #[inline(always)]
    pub fn atomic_set_relaxed<T: KernelAtomic>(&self, of: SymSlice<T>, value: T, pe: u32) {
        match self.word(of, pe, false) {
            // SAFETY: `SymSlice` promises an aligned element in the heap of every PE, and the peer
            // is mapped.
            Some(Ok(word)) => unsafe { <T::Bits as Access<Sys>>::store_relaxed(word.cast(), value.to_bits()) },
            Some(Err(word)) => <T::Bits as Bits>::network_set(word, value.to_bits(), pe as i32),
            None => {}
        }
    }
}
