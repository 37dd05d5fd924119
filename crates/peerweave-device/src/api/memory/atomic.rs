//! Atomic operations on one element of a PE's symmetric memory: the first element of the slice.
//!
//! The names are those of OpenSHMEM. Strong forms acquire and release at system scope. `_relaxed`
//! forms order nothing: at a PE reached over the network, not even two operations of one thread on
//! one word, which [`Context::fence`] orders. A form without a result does not wait for the
//! operation. If the PE is unreachable, the status reports it, and a fetching form returns a value
//! with all bits zero.

use crate::api::Context;
use crate::api::bits::{Bits, KernelAdd, KernelAtomic, KernelInteger};
use crate::api::context::Reach;
use crate::api::views::address;
use crate::gpu::{Access, AcqRel, Fence, Reduce, Relaxed, Release, Rmw, Sys};
use peerweave_types::{KernelOp, Plain, SymSlice};

impl Context {
    /// Returns the word at a PE: its address if the PE is mapped (`Ok`), or the address in this
    /// PE's heap if the PE is reached over the network (`Err`). A strong operation over the network
    /// is ordered after earlier accesses of this thread.
    #[inline(always)]
    fn word<T: Plain>(&self, of: SymSlice<T>, pe: u32, strong: bool) -> Option<Result<*mut T, u64>> {
        assert!(!of.is_empty(), "the slice of an atomic operation is empty, expected one element");
        match self.reach(KernelOp::Atomic, pe) {
            Ok(Reach::Mapped(base)) => {
                // Completes the earlier bulk stores of this thread.
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

/// Returns a value read over the network, after the fence that makes a strong operation an acquire.
#[inline(always)]
fn acquired<T>(value: T, strong: bool) -> T {
    if strong {
        <Sys as Fence>::acq_rel();
    }
    value
}

/// Implements operations that return the previous value, through the word's bits.
macro_rules! fetching {
    ($bound:ident: $($(#[$doc:meta])* $strong:ident, $relaxed:ident($($argument:ident),*) = $operation:ident, $network:ident;)*) => {$(
        fetching!(@ $bound, $(#[$doc])* "Acquires the replaced value, and releases.", AcqRel true, $strong($($argument),*) = $operation, $network);
        fetching!(@ $bound, $(#[$doc])* "Orders nothing.", Relaxed false, $relaxed($($argument),*) = $operation, $network);
    )*};
    (@ $bound:ident, $(#[$doc:meta])* $order_doc:literal, $order:ident $is_strong:literal, $name:ident($($argument:ident),*) = $operation:ident,
        $network:ident) => {
        $(#[$doc])*
        /// Returns the previous value.
        ///
        /// # Ordering
        #[doc = $order_doc]
        ///
        /// # Panics
        /// If the slice is empty; on a GPU the kernel traps.
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

/// Implements operations without a result, through the word's bits.
macro_rules! reducing {
    ($($(#[$doc:meta])* $strong:ident, $relaxed:ident = $operation:ident, $network:ident;)*) => {$(
        reducing!(@ $(#[$doc])* "Releases.", Release true, $strong = $operation, $network);
        reducing!(@ $(#[$doc])* "Orders nothing.", Relaxed false, $relaxed = $operation, $network);
    )*};
    (@ $(#[$doc:meta])* $order_doc:literal, $order:ident $is_strong:literal, $name:ident = $operation:ident, $network:ident) => {
        $(#[$doc])*
        ///
        /// # Ordering
        #[doc = $order_doc]
        ///
        /// # Panics
        /// If the slice is empty; on a GPU the kernel traps.
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

/// Implements additions; floats have their own instructions.
macro_rules! adding {
    ($fetch_add:ident, $add:ident, $fetch_inc:ident, $inc:ident, $strong:literal, $fetch_doc:literal, $doc:literal) => {
        /// Adds. Integers wrap, floats are rounded to nearest. Returns the previous value.
        ///
        /// This is one instruction, except for `bf16` before sm_90, and for floats at a PE reached
        /// over the network. Those are compared and swapped until no other change intervenes.
        ///
        /// # Ordering
        #[doc = $fetch_doc]
        ///
        /// # Panics
        /// If the slice is empty; on a GPU the kernel traps.
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

        /// Adds. Integers wrap, floats are rounded to nearest. See the fetching form.
        ///
        /// # Ordering
        #[doc = $doc]
        ///
        /// # Panics
        /// If the slice is empty; on a GPU the kernel traps.
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

        /// Adds one. Returns the previous value.
        ///
        /// # Ordering
        #[doc = $fetch_doc]
        ///
        /// # Panics
        /// If the slice is empty; on a GPU the kernel traps.
        #[inline(always)]
        pub fn $fetch_inc<T: KernelAdd>(&self, of: SymSlice<T>, pe: u32) -> T {
            self.$fetch_add(of, T::ONE, pe)
        }

        /// Adds one.
        ///
        /// # Ordering
        #[doc = $doc]
        ///
        /// # Panics
        /// If the slice is empty; on a GPU the kernel traps.
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
        "Acquires the replaced value, and releases.",
        "Releases."
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
        /// Writes the value.
        atomic_swap, atomic_swap_relaxed(value) = swap, network_swap;
        /// Writes `new` if the element equals `current`, compared by bits.
        atomic_compare_swap, atomic_compare_swap_relaxed(current, new) = compare_swap, network_compare_swap;
    }

    fetching! { KernelInteger:
        /// Bitwise and.
        atomic_fetch_and, atomic_fetch_and_relaxed(value) = fetch_and, network_fetch_and;
        /// Bitwise or.
        atomic_fetch_or, atomic_fetch_or_relaxed(value) = fetch_or, network_fetch_or;
        /// Bitwise exclusive or.
        atomic_fetch_xor, atomic_fetch_xor_relaxed(value) = fetch_xor, network_fetch_xor;
    }

    reducing! {
        /// Bitwise and.
        atomic_and, atomic_and_relaxed = and, network_and;
        /// Bitwise or.
        atomic_or, atomic_or_relaxed = or, network_or;
        /// Bitwise exclusive or.
        atomic_xor, atomic_xor_relaxed = xor, network_xor;
    }

    /// Reads the element.
    ///
    /// # Ordering
    /// Acquire: writes released by the writer of the value are visible afterwards.
    ///
    /// # Panics
    /// If the slice is empty; on a GPU the kernel traps.
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

    /// Reads the element.
    ///
    /// # Ordering
    /// Orders nothing.
    ///
    /// # Panics
    /// If the slice is empty; on a GPU the kernel traps.
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

    /// Writes the element.
    ///
    /// # Ordering
    /// Release.
    ///
    /// # Panics
    /// If the slice is empty; on a GPU the kernel traps.
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

    /// Writes the element.
    ///
    /// # Ordering
    /// Orders nothing.
    ///
    /// # Panics
    /// If the slice is empty; on a GPU the kernel traps.
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
