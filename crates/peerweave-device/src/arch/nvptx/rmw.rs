//! Read-modify-write operations on words in global memory. Operations that return the old value are
//! `atom` instructions. Operations that return nothing are `red` instructions.

use crate::arch::ops::{for_each_reach_and_order, for_each_reach_and_reduce_order};
use crate::arch::{AcqRel, Acquire, Cta, FloatAdd, Gpu, Reduce, Relaxed, Release, Rmw, Sys};
use core::arch::asm;
use peerweave_types::{bf16, f16};

#[cfg(not(target_feature = "sm_90"))]
use super::Piece;

/// Generates one `atom` instruction.
macro_rules! atom {
    ($order:literal $scope:literal $operation:expr, $word:expr, $value:expr, $class:ident) => {{
        let old;
        // SAFETY: the caller promises an aligned, accessible word in global memory.
        unsafe {
            asm!(
                concat!("atom.", $order, ".", $scope, ".global.", $operation, " {old}, [{word}], {value};"),
                old = out($class) old,
                word = in(reg64) $word,
                value = in($class) $value,
                options(nostack),
            );
        }
        old
    }};
}

/// Generates one `red` instruction.
macro_rules! red {
    ($order:literal $scope:literal $operation:expr, $word:expr, $value:expr, $class:ident) => {
        // SAFETY: the caller promises an aligned, accessible word in global memory.
        unsafe {
            asm!(
                concat!("red.", $order, ".", $scope, ".global.", $operation, " [{word}], {value};"),
                word = in(reg64) $word,
                value = in($class) $value,
                options(nostack),
            );
        }
    };
}

/// Implements integer read-modify-writes. `$add` is PTX's name for the addition. For 64 bits, PTX
/// has only the unsigned addition, so `i64` uses `add.u64`.
macro_rules! integer {
    ($reach:ident $scope:literal, $order:ident $semantics:literal: $t:ty, $class:ident, $bits:literal, $add:literal, $compare:literal) => {
        // SAFETY: one `atom` instruction each, with the semantics and scope of the parameters.
        unsafe impl Rmw<$reach, $order> for $t {
            #[inline(always)]
            unsafe fn fetch_add(word: *mut Self, value: Self) -> Self {
                atom!($semantics $scope $add, word, value, $class)
            }

            #[inline(always)]
            unsafe fn fetch_and(word: *mut Self, value: Self) -> Self {
                atom!($semantics $scope concat!("and.", $bits), word, value, $class)
            }

            #[inline(always)]
            unsafe fn fetch_or(word: *mut Self, value: Self) -> Self {
                atom!($semantics $scope concat!("or.", $bits), word, value, $class)
            }

            #[inline(always)]
            unsafe fn fetch_xor(word: *mut Self, value: Self) -> Self {
                atom!($semantics $scope concat!("xor.", $bits), word, value, $class)
            }

            #[inline(always)]
            unsafe fn fetch_min(word: *mut Self, value: Self) -> Self {
                atom!($semantics $scope concat!("min.", $compare), word, value, $class)
            }

            #[inline(always)]
            unsafe fn fetch_max(word: *mut Self, value: Self) -> Self {
                atom!($semantics $scope concat!("max.", $compare), word, value, $class)
            }

            #[inline(always)]
            unsafe fn swap(word: *mut Self, value: Self) -> Self {
                atom!($semantics $scope concat!("exch.", $bits), word, value, $class)
            }

            #[inline(always)]
            unsafe fn compare_swap(word: *mut Self, current: Self, new: Self) -> Self {
                let old;
                // SAFETY: the caller promises an aligned, accessible word in global memory.
                unsafe {
                    asm!(
                        concat!("atom.", $semantics, ".", $scope, ".global.cas.", $bits, " {old}, [{word}], {current}, {new};"),
                        old = out($class) old,
                        word = in(reg64) word,
                        current = in($class) current,
                        new = in($class) new,
                        options(nostack),
                    );
                }
                old
            }
        }
    };
}

macro_rules! integers {
    ($reach:ident $scope:literal, $order:ident $semantics:literal) => {
        integer!($reach $scope, $order $semantics: u32, reg32, "b32", "add.u32", "u32");
        integer!($reach $scope, $order $semantics: i32, reg32, "b32", "add.s32", "s32");
        integer!($reach $scope, $order $semantics: u64, reg64, "b64", "add.u64", "u64");
        integer!($reach $scope, $order $semantics: i64, reg64, "b64", "add.u64", "s64");

        // SAFETY: one `atom` instruction, with the semantics and scope of the parameters.
        unsafe impl FloatAdd<$reach, $order> for f32 {
            #[inline(always)]
            unsafe fn fetch_add(word: *mut Self, value: Self) -> Self {
                atom!($semantics $scope "add.f32", word, value, reg32)
            }
        }

        // SAFETY: one `atom` instruction, with the semantics and scope of the parameters.
        unsafe impl FloatAdd<$reach, $order> for f64 {
            #[inline(always)]
            unsafe fn fetch_add(word: *mut Self, value: Self) -> Self {
                atom!($semantics $scope "add.f64", word, value, reg64)
            }
        }

        // SAFETY: one `atom` instruction, with the semantics and scope of the parameters.
        unsafe impl FloatAdd<$reach, $order> for f16 {
            #[inline(always)]
            unsafe fn fetch_add(word: *mut Self, value: Self) -> Self {
                let old: u16 = atom!($semantics $scope "add.noftz.f16", word, value.to_bits(), reg16);
                Self::from_bits(old)
            }
        }

        // SAFETY: one `atom` instruction changes the word, with the semantics and scope of the
        // parameters; before sm_90, the instructions before it only read.
        unsafe impl FloatAdd<$reach, $order> for bf16 {
            #[cfg(target_feature = "sm_90")]
            #[inline(always)]
            unsafe fn fetch_add(word: *mut Self, value: Self) -> Self {
                let old: u16 = atom!($semantics $scope "add.noftz.bf16", word, value.to_bits(), reg16);
                Self::from_bits(old)
            }

            #[cfg(not(target_feature = "sm_90"))]
            #[inline]
            unsafe fn fetch_add(word: *mut Self, value: Self) -> Self {
                // SAFETY: the caller promises an aligned, accessible word in global memory.
                let mut seen = unsafe { <u16 as Piece>::load_strong(word.cast()) };
                loop {
                    let sum = Self::from_f32(Self::from_bits(seen).to_f32() + value.to_f32());
                    let old: u16;
                    // SAFETY: as above.
                    unsafe {
                        asm!(
                            concat!("atom.", $semantics, ".", $scope, ".global.cas.b16 {old}, [{word}], {seen}, {sum};"),
                            old = out(reg16) old,
                            word = in(reg64) word,
                            seen = in(reg16) seen,
                            sum = in(reg16) sum.to_bits(),
                            options(nostack),
                        );
                    }
                    if old == seen {
                        return Self::from_bits(old);
                    }
                    seen = old;
                }
            }
        }
    };
}

for_each_reach_and_order!(integers);

macro_rules! reduction {
    ($reach:ident $scope:literal, $order:ident $semantics:literal: $t:ty, $class:ident, $bits:literal, $add:literal, $compare:literal) => {
        // SAFETY: one `red` instruction each, with the semantics and scope of the parameters.
        unsafe impl Reduce<$reach, $order> for $t {
            #[inline(always)]
            unsafe fn add(word: *mut Self, value: Self) {
                red!($semantics $scope $add, word, value, $class);
            }

            #[inline(always)]
            unsafe fn and(word: *mut Self, value: Self) {
                red!($semantics $scope concat!("and.", $bits), word, value, $class);
            }

            #[inline(always)]
            unsafe fn or(word: *mut Self, value: Self) {
                red!($semantics $scope concat!("or.", $bits), word, value, $class);
            }

            #[inline(always)]
            unsafe fn xor(word: *mut Self, value: Self) {
                red!($semantics $scope concat!("xor.", $bits), word, value, $class);
            }

            #[inline(always)]
            unsafe fn min(word: *mut Self, value: Self) {
                red!($semantics $scope concat!("min.", $compare), word, value, $class);
            }

            #[inline(always)]
            unsafe fn max(word: *mut Self, value: Self) {
                red!($semantics $scope concat!("max.", $compare), word, value, $class);
            }
        }
    };
}

macro_rules! reductions {
    ($reach:ident $scope:literal, $order:ident $semantics:literal) => {
        reduction!($reach $scope, $order $semantics: u32, reg32, "b32", "add.u32", "u32");
        reduction!($reach $scope, $order $semantics: i32, reg32, "b32", "add.s32", "s32");
        reduction!($reach $scope, $order $semantics: u64, reg64, "b64", "add.u64", "u64");
        reduction!($reach $scope, $order $semantics: i64, reg64, "b64", "add.u64", "s64");
    };
}

for_each_reach_and_reduce_order!(reductions);
