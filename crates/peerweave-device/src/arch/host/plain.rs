//! Relaxed atomic accesses of 1 to 16 bytes, for copies.
//!
//! A peer may write the memory while a copy reads it. Because the accesses are atomic, such a race
//! has an unspecified result, but no undefined behaviour. Before each access the executor may run
//! another thread, so that tests find such races.

use super::executor::executor;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// 16 bytes as two words, the low half first.
pub type Vector = [u64; 2];

/// Returns the two halves of a vector.
///
/// # Safety
/// `at` points to 16 bytes, aligned to 16, that this thread can access for `'a`. Other threads
/// access these bytes only atomically.
#[inline]
unsafe fn halves<'a>(at: *mut u8) -> [&'a AtomicU64; 2] {
    let at = at.cast::<u64>();
    // SAFETY: the caller promises two aligned, accessible words.
    unsafe { [AtomicU64::from_ptr(at), AtomicU64::from_ptr(at.add(1))] }
}

macro_rules! vector_access {
    ($($load:ident $store:ident),*) => {$(
        /// Reads 16 bytes, each half by one relaxed access of 8 bytes.
        ///
        /// # Safety
        /// `from` points to memory, aligned to 16, that this thread can read.
        #[inline]
        pub unsafe fn $load(from: *const u8) -> Vector {
            executor().step();
            // SAFETY: the caller promises aligned, readable memory of both halves.
            let [low, high] = unsafe { halves(from.cast_mut()) };
            [low.load(Ordering::Relaxed), high.load(Ordering::Relaxed)]
        }

        /// Writes 16 bytes, each half by one relaxed access of 8 bytes.
        ///
        /// # Safety
        /// `to` points to memory, aligned to 16, that this thread can write.
        #[inline]
        pub unsafe fn $store(to: *mut u8, value: Vector) {
            executor().step();
            // SAFETY: the caller promises aligned, writable memory of both halves.
            let [low, high] = unsafe { halves(to) };
            low.store(value[0], Ordering::Relaxed);
            high.store(value[1], Ordering::Relaxed);
        }
    )*};
}

vector_access!(load_vector_global store_vector_global, load_vector_generic store_vector_generic,
    load_vector_relaxed store_vector_relaxed);

/// An integer of 1, 2, 4 or 8 bytes, the unit in which copies access memory. On the host all loads
/// and all stores are relaxed atomic accesses.
///
/// # Safety
/// Each method of an implementation accesses exactly the value at the pointer.
pub unsafe trait Piece: Copy {
    /// Reads a value.
    ///
    /// # Safety
    /// The pointer is aligned to the size of the value, and this thread can read the value.
    unsafe fn load_global(from: *const Self) -> Self;
    /// Does the same as [`Self::load_global`] on the host, which has only one address space.
    ///
    /// # Safety
    /// As for [`Self::load_global`].
    #[inline]
    unsafe fn load_generic(from: *const Self) -> Self {
        // SAFETY: the caller promises the same.
        unsafe { Self::load_global(from) }
    }
    /// Does the same as [`Self::load_global`] on the host, where every load is relaxed and atomic.
    ///
    /// # Safety
    /// As for [`Self::load_global`].
    #[inline]
    unsafe fn load_strong(from: *const Self) -> Self {
        // SAFETY: the caller promises the same.
        unsafe { Self::load_global(from) }
    }
    /// Writes a value.
    ///
    /// # Safety
    /// The pointer is aligned to the size of the value, and this thread can write the value.
    unsafe fn store_global(to: *mut Self, value: Self);
    /// Does the same as [`Self::store_global`] on the host, which has only one address space.
    ///
    /// # Safety
    /// As for [`Self::store_global`].
    #[inline]
    unsafe fn store_generic(to: *mut Self, value: Self) {
        // SAFETY: the caller promises the same.
        unsafe { Self::store_global(to, value) }
    }
    /// Does the same as [`Self::store_global`] on the host, where every store is relaxed and
    /// atomic.
    ///
    /// # Safety
    /// As for [`Self::store_global`].
    #[inline]
    unsafe fn store_strong(to: *mut Self, value: Self) {
        // SAFETY: the caller promises the same.
        unsafe { Self::store_global(to, value) }
    }
}

macro_rules! piece {
    ($($t:ty as $atomic:ty),*) => {$(
        // SAFETY: one atomic access of the type's width.
        unsafe impl Piece for $t {
            #[inline]
            unsafe fn load_global(from: *const Self) -> Self {
                executor().step();
                // SAFETY: the caller promises aligned, readable memory.
                unsafe { <$atomic>::from_ptr(from.cast_mut()) }.load(Ordering::Relaxed)
            }

            #[inline]
            unsafe fn store_global(to: *mut Self, value: Self) {
                executor().step();
                // SAFETY: the caller promises aligned, writable memory.
                unsafe { <$atomic>::from_ptr(to) }.store(value, Ordering::Relaxed);
            }
        }
    )*};
}

piece!(u8 as AtomicU8, u16 as AtomicU16, u32 as AtomicU32, u64 as AtomicU64);

/// Reads a word that is not written while the kernel runs.
///
/// # Safety
/// `from` points to an aligned, readable word that is not written until the kernel ends.
#[inline]
pub unsafe fn load_constant(from: *const u64) -> u64 {
    // SAFETY: the caller promises a readable word that does not change.
    unsafe { *from }
}

/// Reads a word of 32 bits that is not written while the kernel runs.
///
/// # Safety
/// As for [`load_constant`].
#[inline]
pub unsafe fn load_constant_u32(from: *const u32) -> u32 {
    // SAFETY: the caller promises a readable word that does not change.
    unsafe { *from }
}

/// Returns the pointer advanced by `bytes` bytes.
#[inline]
pub fn advance(pointer: *mut u8, bytes: usize) -> *mut u8 {
    pointer.wrapping_add(bytes)
}
