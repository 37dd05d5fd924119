//! An instruction set in portable Rust: every access consists of relaxed atomic accesses of single
//! bytes. This file is the specification of the other instruction sets. It is used by miri, by the
//! tests, and on architectures that have no file of their own.
//!
//! This code is slow, because it accesses single bytes instead of words. Accesses of words would
//! not be sound: two copies may divide the same memory into words differently, and racing atomic
//! accesses of different sizes are undefined in Rust.
//!
//! Under miri with Stacked Borrows, an atomic load needs a pointer that also allows writing. Under
//! Tree Borrows, the load needs only a pointer that allows reading.

use super::super::lanes::Storage;
use super::{Arch, Kernel, Vector};
use std::sync::atomic::{AtomicU8, Ordering};

/// Reads `N` bytes at any address.
///
/// # Safety
/// As for [`Vector::load`], for `N` bytes.
#[inline(always)]
unsafe fn load_bytes<const N: usize>(from: *const u8) -> [u8; N] {
    // SAFETY: the caller promises that these bytes may be read atomically. `AtomicU8` has alignment
    // 1. The bytes need not be writable: the section "atomic accesses on read-only memory" of the
    // documentation of `std::sync::atomic` allows relaxed loads of this size.
    core::array::from_fn(|i| unsafe { &*from.add(i).cast::<AtomicU8>() }.load(Ordering::Relaxed))
}

/// Writes `N` bytes at any address.
///
/// # Safety
/// As for [`Vector::store`], for `N` bytes.
#[inline(always)]
unsafe fn store_bytes<const N: usize>(bytes: [u8; N], to: *mut u8) {
    for (i, byte) in bytes.into_iter().enumerate() {
        // SAFETY: the caller promises that these bytes may be written atomically. `AtomicU8` has
        // alignment 1.
        unsafe { AtomicU8::from_ptr(to.add(i)).store(byte, Ordering::Relaxed) };
    }
}

/// Reads and writes of 1, 2, 4 or 8 bytes.
#[allow(dead_code, reason = "architectures with their own file use the module `word` of that file instead")]
pub(crate) mod word {
    macro_rules! word {
        ($($t:ty: $load:ident $store:ident),*) => {$(
            /// Reads one integer at any address.
            ///
            /// # Safety
            /// As for [`super::Vector::load`].
            #[inline(always)]
            pub(crate) unsafe fn $load(from: *const u8) -> $t {
                // SAFETY: guaranteed by the caller.
                <$t>::from_ne_bytes(unsafe { super::load_bytes(from) })
            }

            /// Writes one integer at any address.
            ///
            /// # Safety
            /// As for [`super::Vector::store`].
            #[inline(always)]
            pub(crate) unsafe fn $store(value: $t, to: *mut u8) {
                // SAFETY: guaranteed by the caller.
                unsafe { super::store_bytes(value.to_ne_bytes(), to) }
            }
        )*};
    }
    word!(u8: load_u8 store_u8, u16: load_u16 store_u16, u32: load_u32 store_u32, u64: load_u64 store_u64);
}

/// A register of sixteen bytes, represented by an array.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Sixteen([u8; 16]);

// SAFETY: [V1] an array of bytes; [V2] byte-wise relaxed atomics by construction.
unsafe impl Vector for Sixteen {
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: guaranteed by the caller.
        Self(unsafe { load_bytes(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: guaranteed by the caller.
        unsafe { store_bytes(self.0, to) };
    }

    #[inline(always)]
    unsafe fn store_streaming(self, to: *mut u8) {
        // SAFETY: guaranteed by the caller.
        unsafe { store_bytes(self.0, to) };
    }
}

/// The instruction set that uses only portable Rust code.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

// SAFETY: [A1] `Raw` and `Vector` have 16 bytes.
unsafe impl Arch for Portable {
    type Vector = Sixteen;
    type Raw<S: Storage> = S::Raw16;
    type Values<S: Storage> = S::Values16;

    #[inline]
    unsafe fn enter<K: Kernel>(kernel: K) {
        // SAFETY: guaranteed by the caller.
        unsafe { kernel.run::<Self>() };
    }

    #[inline(always)]
    fn fence_streaming() {}
}
