//! Atomics from the host, by type.
//!
//! There are no atomics on streams, because NVSHMEM has only signals on streams. Invariant: unless
//! the setting `ATOMICS` is set, atomics behave as in every known release of NVSHMEM: they are
//! exported, print "not implemented" and return zero.

use core::ffi::c_int;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use half::f16;

use crate::abi::types::{each_atomic, each_atomic_bitwise};
use crate::arithmetic::Number;
use crate::call::{self, complain, export, undefined};
use crate::job::{counters, live};
use crate::settings;

/// A value whose bits can be changed atomically.
trait Atomic: Number + PartialEq {
    /// Changes the value and returns the previous one.
    ///
    /// # Safety
    /// The address is the address of a live, aligned value.
    unsafe fn change(address: *mut u8, change: impl FnMut(Self) -> Option<Self>) -> Self;
    fn one() -> Self;
}

macro_rules! atomics {
    ($($kind:ty, $word:ty, $atomic:ident, $to:expr, $from:expr, $one:expr;)*) => {$(
        impl Atomic for $kind {
            unsafe fn change(address: *mut u8, mut change: impl FnMut(Self) -> Option<Self>) -> Self {
                // SAFETY: guaranteed by the caller.
                let atomic = unsafe { $atomic::from_ptr(address.cast::<$word>()) };
                let step = |word: $word| change($from(word)).map($to);
                let found = atomic.fetch_update(Ordering::AcqRel, Ordering::Acquire, step);
                $from(found.unwrap_or_else(|word| word))
            }
            fn one() -> Self {
                $one
            }
        }
    )*};
}
macro_rules! integers {
    ($($kind:ty, $word:ty, $atomic:ident;)*) => {
        atomics! { $($kind, $word, $atomic, |value: $kind| value as $word, |word: $word| word as $kind, 1;)* }
    };
}
integers! {
    i32, u32, AtomicU32; u32, u32, AtomicU32; i64, u64, AtomicU64; u64, u64, AtomicU64; isize, u64, AtomicU64; usize, u64, AtomicU64;
}
atomics! {
    f16, u16, AtomicU16, f16::to_bits, f16::from_bits, f16::ONE;
    f32, u32, AtomicU32, f32::to_bits, f32::from_bits, 1.0;
    f64, u64, AtomicU64, f64::to_bits, f64::from_bits, 1.0;
}

/// Changes a value of a PE; returns the previous one, or zero if atomics are disabled.
fn act<T: Atomic + Default>(target: *const T, pe: c_int, change: impl FnMut(T) -> Option<T>) -> T {
    let (world, function) = (live(), call::function());
    world.check_pe(pe);
    if !settings::get().atomics {
        complain(&format!("{function} not implemented"));
        return T::default();
    }
    counters::TRANSFERS.fetch_add(1, Ordering::Relaxed);
    if !target.addr().is_multiple_of(size_of::<T>()) {
        undefined(&format!("{function}: the word at {:#x} is not aligned", target.addr()));
    }
    let memory = world.memory();
    let place = memory.symmetric(function, "the word", target.addr(), size_of::<T>());
    // SAFETY: the word was found live, stays live while the memory is locked, and is aligned.
    unsafe { T::change(memory.of(pe, place), change) }
}

macro_rules! standard {
    ($name:literal $kind:ty) => {
        extended! { $name $kind }
        export! { ["nvshmem_", $name, "_atomic_inc"] (target: *mut $kind, pe: c_int) {
            act(target, pe, |old: $kind| Some(old.sum(Atomic::one())));
        } }
        export! { ["nvshmem_", $name, "_atomic_fetch_inc"] (target: *mut $kind, pe: c_int) -> $kind {
            act(target, pe, |old: $kind| Some(old.sum(Atomic::one())))
        } }
        export! { ["nvshmem_", $name, "_atomic_compare_swap"] (target: *mut $kind, old: $kind, new: $kind, pe: c_int) -> $kind {
            act(target, pe, |found: $kind| (found == old).then_some(new))
        } }
        sums! { "nvshmem_" $name $kind }
    };
}

macro_rules! sums {
    ($prefix:literal $name:literal $kind:ty) => {
        export! { [$prefix, $name, "_atomic_add"] (target: *mut $kind, value: $kind, pe: c_int) {
            act(target, pe, |old: $kind| Some(old.sum(value)));
        } }
        export! { [$prefix, $name, "_atomic_fetch_add"] (target: *mut $kind, value: $kind, pe: c_int) -> $kind {
            act(target, pe, |old: $kind| Some(old.sum(value)))
        } }
    };
}

macro_rules! extended {
    ($name:literal $kind:ty) => {
        export! { ["nvshmem_", $name, "_atomic_fetch"] (target: *const $kind, pe: c_int) -> $kind {
            act(target, pe, |_| None)
        } }
        export! { ["nvshmem_", $name, "_atomic_set"] (target: *mut $kind, value: $kind, pe: c_int) {
            act(target, pe, |_| Some(value));
        } }
        export! { ["nvshmem_", $name, "_atomic_swap"] (target: *mut $kind, value: $kind, pe: c_int) -> $kind {
            act(target, pe, |_| Some(value))
        } }
    };
}

macro_rules! bitwise {
    ($name:literal $kind:ty) => {
        bitwise! { $name $kind; "and" & "or" | "xor" ^ }
    };
    ($name:literal $kind:ty; $($word:literal $operator:tt)*) => {$(
        export! { ["nvshmem_", $name, "_atomic_", $word] (target: *mut $kind, value: $kind, pe: c_int) {
            act(target, pe, |old: $kind| Some(old $operator value));
        } }
        export! { ["nvshmem_", $name, "_atomic_fetch_", $word] (target: *mut $kind, value: $kind, pe: c_int) -> $kind {
            act(target, pe, |old: $kind| Some(old $operator value))
        } }
    )*};
}

each_atomic!(standard);
each_atomic_bitwise!(bitwise);
extended! { "float" f32 }
extended! { "double" f64 }
sums! { "nvshmemx_" "half" f16 }
sums! { "nvshmemx_" "float" f32 }
sums! { "nvshmemx_" "double" f64 }
