//! Atomic operations on words, implemented by the atomics of Rust. Every scope means the whole
//! machine.
//!
//! At each access and each fence the executor may run another thread. So a seeded schedule can vary
//! the order in which the threads of a grid observe accesses.

use super::executor::executor;
use crate::arch::ops::{for_each_reach_and_order, for_each_reach_and_reduce_order};
use crate::arch::{Access, AcqRel, Acquire, Cta, Fence, FloatAdd, Gpu, Reduce, Relaxed, Release, Rmw, Sys};
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use peerweave_types::{bf16, f16};

/// A memory order of read-modify-writes, with the corresponding `Ordering` of Rust.
pub(super) trait Order {
    const ORDERING: Ordering;
    /// The order of the load if a compare-and-swap fails.
    const LOAD: Ordering;
}

impl Order for Relaxed {
    const ORDERING: Ordering = Ordering::Relaxed;
    const LOAD: Ordering = Ordering::Relaxed;
}

impl Order for Acquire {
    const ORDERING: Ordering = Ordering::Acquire;
    const LOAD: Ordering = Ordering::Acquire;
}

impl Order for Release {
    const ORDERING: Ordering = Ordering::Release;
    const LOAD: Ordering = Ordering::Relaxed;
}

impl Order for AcqRel {
    const ORDERING: Ordering = Ordering::AcqRel;
    const LOAD: Ordering = Ordering::Acquire;
}

/// Calls [`Executor::step`](super::Executor::step), then returns the atomic word at a pointer.
///
/// # Safety
/// The pointer points to an aligned word that this thread can access for `'a`. Other threads access
/// this word only atomically.
macro_rules! atomic {
    ($atomic:ty, $pointer:expr) => {{
        executor().step();
        // SAFETY: the caller of the operation promises an aligned, accessible word that is accessed
        // atomically.
        unsafe { <$atomic>::from_ptr($pointer) }
    }};
}

macro_rules! access {
    ($reach:ident: $($t:ty as $atomic:ty),*) => {
        $(
            // SAFETY: one atomic access of the type's width.
            unsafe impl Access<$reach> for $t {
                #[inline]
                unsafe fn load_relaxed(from: *const Self) -> Self {
                    atomic!($atomic, from.cast_mut()).load(Ordering::Relaxed)
                }

                #[inline]
                unsafe fn load_acquire(from: *const Self) -> Self {
                    atomic!($atomic, from.cast_mut()).load(Ordering::Acquire)
                }

                #[inline]
                unsafe fn store_relaxed(to: *mut Self, value: Self) {
                    atomic!($atomic, to).store(value, Ordering::Relaxed);
                }

                #[inline]
                unsafe fn store_release(to: *mut Self, value: Self) {
                    atomic!($atomic, to).store(value, Ordering::Release);
                }
            }
        )*

        impl Fence for $reach {
            #[inline]
            fn acq_rel() {
                executor().step();
                fence(Ordering::AcqRel);
            }

            #[inline]
            fn seq_cst() {
                executor().step();
                fence(Ordering::SeqCst);
            }
        }
    };
}

access!(Cta: u32 as AtomicU32, u64 as AtomicU64);
access!(Gpu: u32 as AtomicU32, u64 as AtomicU64);
access!(Sys: u32 as AtomicU32, u64 as AtomicU64);

macro_rules! fetch {
    ($atomic:ty, $order:ident: $($name:ident),*) => {$(
        /// # Safety
        /// As for the method of [`Rmw`] that this function implements.
        #[inline]
        unsafe fn $name(word: *mut Self, value: Self) -> Self {
            atomic!($atomic, word).$name(value, <$order as Order>::ORDERING)
        }
    )*};
}

macro_rules! integer {
    ($reach:ident, $order:ident: $($t:ty as $atomic:ty),*) => {$(
        // SAFETY: one atomic access of the type's width.
        unsafe impl Rmw<$reach, $order> for $t {
            fetch!($atomic, $order: fetch_add, fetch_and, fetch_or, fetch_xor, fetch_min, fetch_max, swap);

            #[inline]
            unsafe fn compare_swap(word: *mut Self, current: Self, new: Self) -> Self {
                let (Ok(old) | Err(old)) =
                    atomic!($atomic, word).compare_exchange(current, new, <$order as Order>::ORDERING, <$order as Order>::LOAD);
                old
            }
        }
    )*};
}

macro_rules! float {
    ($reach:ident, $order:ident: $($t:ty as $atomic:ty),*) => {$(
        // SAFETY: one atomic access of the type's width changes the word; the accesses before it
        // only read.
        unsafe impl FloatAdd<$reach, $order> for $t {
            #[inline]
            unsafe fn fetch_add(word: *mut Self, value: Self) -> Self {
                let (Ok(old) | Err(old)) = atomic!($atomic, word.cast()).fetch_update(
                    <$order as Order>::ORDERING,
                    <$order as Order>::LOAD,
                    |bits| Some((<$t>::from_bits(bits) + value).to_bits()),
                );
                <$t>::from_bits(old)
            }
        }
    )*};
}

macro_rules! integers {
    ($reach:ident $scope:literal, $order:ident $semantics:literal) => {
        integer!($reach, $order: u32 as AtomicU32, i32 as AtomicI32, u64 as AtomicU64, i64 as AtomicI64);
        float!($reach, $order: f32 as AtomicU32, f64 as AtomicU64, f16 as AtomicU16, bf16 as AtomicU16);
    };
}

for_each_reach_and_order!(integers);

macro_rules! reduction {
    ($reach:ident, $order:ident: $($t:ty),*) => {$(
        // SAFETY: one atomic access of the type's width.
        unsafe impl Reduce<$reach, $order> for $t {
            reduction!(@ $reach, $order: add fetch_add, and fetch_and, or fetch_or, xor fetch_xor, min fetch_min, max fetch_max);
        }
    )*};
    (@ $reach:ident, $order:ident: $($name:ident $fetch:ident),*) => {$(
        /// # Safety
        /// As for the method of [`Reduce`] that this function implements.
        #[inline]
        unsafe fn $name(word: *mut Self, value: Self) {
            // SAFETY: the caller promises what the method of `Rmw` requires.
            unsafe { <Self as Rmw<$reach, $order>>::$fetch(word, value) };
        }
    )*};
}

macro_rules! reductions {
    ($reach:ident $scope:literal, $order:ident $semantics:literal) => {
        reduction!($reach, $order: u32, i32, u64, i64);
    };
}

for_each_reach_and_reduce_order!(reductions);

/// Reads 16 bytes, each half by one relaxed atomic access.
///
/// # Safety
/// `from` points to 16 bytes, aligned to 16, that this thread can access. Other threads access
/// these bytes only atomically.
#[inline]
pub unsafe fn load_line_relaxed(from: *const u128) -> [u64; 2] {
    let halves = from.cast::<u64>();
    // SAFETY: the caller promises the 16 bytes, which these two words form.
    unsafe { [<u64 as Access<Sys>>::load_relaxed(halves), <u64 as Access<Sys>>::load_relaxed(halves.add(1))] }
}

/// Writes 16 bytes, each half by one relaxed atomic access.
///
/// # Safety
/// As for [`load_line_relaxed`].
#[inline]
pub unsafe fn store_line_relaxed(to: *mut u128, value: [u64; 2]) {
    let halves = to.cast::<u64>();
    // SAFETY: the caller promises the 16 bytes, which these two words form.
    unsafe {
        <u64 as Access<Sys>>::store_relaxed(halves, value[0]);
        <u64 as Access<Sys>>::store_relaxed(halves.add(1), value[1]);
    }
}
