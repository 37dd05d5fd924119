//! Selects the instruction set for this processor, and reads and writes memory with it, one vector
//! register at a time.
//!
//! This module contains no algorithm. Invariant: copies and reductions access shared memory only
//! through functions of this module. No function of this module accesses shared memory by an
//! ordinary Rust load or store.
//!
//! [`portable`] defines what the functions do, by relaxed atomic accesses of single bytes. The
//! files of the other instruction sets have the same effects, with one instruction of inline
//! assembly for each access. The documentation of [`super`] explains why inline assembly is sound
//! for this purpose.

use super::lanes::{Lanes, Storage};
use std::sync::atomic::{AtomicU8, Ordering};

#[cfg(all(target_arch = "aarch64", target_endian = "little", not(miri)))]
pub(super) mod aarch64;
#[cfg(any(test, miri, not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))))]
pub(super) mod portable;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) mod x86_64;

/// Functions that read and write 1, 2, 4 or 8 bytes at any alignment. Every processor of this
/// architecture supports these functions.
pub(super) mod word {
    #[cfg(all(target_arch = "aarch64", target_endian = "little", not(miri)))]
    pub(in super::super) use super::aarch64::word::*;
    #[cfg(any(miri, not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))))]
    pub(in super::super) use super::portable::word::*;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    pub(in super::super) use super::x86_64::word::*;
}

/// The type of a 16-byte register. Every processor of this architecture has such registers.
#[cfg(all(target_arch = "aarch64", target_endian = "little", not(miri)))]
pub(super) use self::aarch64::Quad as Basic;
#[cfg(any(miri, not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))))]
pub(super) use self::portable::Sixteen as Basic;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) use self::x86_64::Xmm as Basic;

/// The value of one vector register, as bytes in memory order.
///
/// # Safety
/// An implementation promises:
/// - **[V1]** The type has exactly [`Self::BYTES`] bytes, no padding, and every bit pattern is
///   valid.
/// - **[V2]** A load or store touches exactly these bytes of memory, as relaxed atomic accesses
///   would, and no other bytes.
///
/// Every method requires that the addressed bytes are mapped and may be read or written. Other
/// threads and processes may access the bytes at the same time, atomically or by these methods. The
/// processor must have the instruction set to which the type belongs.
pub(super) unsafe trait Vector: Copy {
    /// Size in bytes: 16, 32 or 64.
    const BYTES: usize;

    /// Reads `BYTES` bytes at any address.
    ///
    /// # Safety
    /// The requirements of [`Vector`] are met.
    unsafe fn load(from: *const u8) -> Self;

    /// Writes `BYTES` bytes at any address.
    ///
    /// # Safety
    /// The requirements of [`Vector`] are met.
    unsafe fn store(self, to: *mut u8);

    /// Writes `BYTES` bytes, bypassing the caches if the processor can. The bytes become visible to
    /// other threads at [`Arch::fence_streaming`] at the latest.
    ///
    /// # Safety
    /// The requirements of [`Vector`] are met. In addition, `to` is a multiple of `BYTES`.
    unsafe fn store_streaming(self, to: *mut u8);

    /// Reads four consecutive vectors.
    ///
    /// # Safety
    /// The requirements of [`Vector`] are met.
    #[inline(always)]
    unsafe fn load_four(from: *const u8) -> [Self; 4] {
        // SAFETY: the caller guarantees the requirements for all four vectors.
        unsafe {
            [
                Self::load(from),
                Self::load(from.add(Self::BYTES)),
                Self::load(from.add(2 * Self::BYTES)),
                Self::load(from.add(3 * Self::BYTES)),
            ]
        }
    }

    /// Writes four consecutive vectors.
    ///
    /// # Safety
    /// The requirements of [`Vector`] are met.
    #[inline(always)]
    unsafe fn store_four(vectors: [Self; 4], to: *mut u8) {
        for (i, vector) in vectors.iter().enumerate() {
            // SAFETY: the caller guarantees the requirements for all four vectors.
            unsafe { vector.store(to.add(i * Self::BYTES)) };
        }
    }

    /// Writes four consecutive vectors, bypassing the caches if the processor can.
    ///
    /// # Safety
    /// The requirements of [`Vector`] are met. In addition, `to` is a multiple of `BYTES`.
    #[inline(always)]
    unsafe fn store_four_streaming(vectors: [Self; 4], to: *mut u8) {
        for (i, vector) in vectors.iter().enumerate() {
            // SAFETY: the caller guarantees the requirements for all four vectors.
            unsafe { vector.store_streaming(to.add(i * Self::BYTES)) };
        }
    }
}

/// An instruction set: its registers, and a function that runs code compiled for it.
///
/// # Safety
/// An implementation promises that **[A1]** `Raw<S>` and `Vector` have the same size.
///
/// Every method requires that the processor has the instruction set.
pub(super) unsafe trait Arch: Copy + 'static {
    /// The content of a vector register of this instruction set, as bytes.
    type Vector: Vector;
    /// The content of a register, as an array of elements. The elements have the form in which
    /// memory stores them.
    type Raw<S: Storage>: Lanes<Lane = S>;
    /// The content of a register, as an array of values for arithmetic. Each value is one converted
    /// element.
    type Values<S: Storage>: Lanes<Lane = S::Value>;

    /// Runs `kernel` in a function that is compiled for this instruction set.
    ///
    /// # Safety
    /// The processor has the instruction set, and the requirements of the kernel are met.
    unsafe fn enter<K: Kernel>(kernel: K);

    /// Orders the earlier streaming stores of this thread before its later stores.
    fn fence_streaming();

    /// Copies with the string instruction of the processor. Returns `false`, and copies nothing, if
    /// vectors copy faster on this processor.
    ///
    /// # Safety
    /// As for [`super::copy()`].
    #[inline(always)]
    unsafe fn string_copy(_dst: *mut u8, _src: *const u8, _bytes: usize) -> bool {
        false
    }

    /// Zeroes with the string instruction of the processor. Returns `false`, and writes nothing, if
    /// the processor has no fast string instruction.
    ///
    /// # Safety
    /// As for [`super::fill_zero`].
    #[inline(always)]
    unsafe fn string_zero(_dst: *mut u8, _bytes: usize) -> bool {
        false
    }

    /// Converts binary16 to f32, exactly. A NaN stays a NaN.
    ///
    /// # Safety
    /// The processor has the instruction set.
    #[inline(always)]
    unsafe fn widen_f16(from: &[u16], into: &mut [f32]) {
        super::float16::widen_all(from, into);
    }

    /// Converts f32 to binary16, rounding to nearest, ties to even. A NaN input must be the
    /// canonical NaN.
    ///
    /// # Safety
    /// The processor has the instruction set.
    #[inline(always)]
    unsafe fn narrow_f16(from: &[f32], into: &mut [u16]) {
        super::float16::narrow_all(from, into);
    }

    /// Reads `bytes` bytes into the first bytes of a vector. The rest of the vector is zero.
    /// `bytes` must be less than `BYTES`.
    ///
    /// # Safety
    /// As for [`Vector::load`], for `bytes` bytes.
    #[inline(always)]
    unsafe fn load_part(from: *const u8, bytes: usize) -> Self::Vector {
        let mut private = [0u8; 64];
        // SAFETY: `private` is a local array that is at least as long as any vector, and [V1]
        // allows every bit pattern. The caller guarantees the validity of `from`.
        unsafe {
            super::copy::pieces(private.as_mut_ptr(), from, bytes);
            private.as_ptr().cast::<Self::Vector>().read_unaligned()
        }
    }

    /// Writes the first `bytes` bytes of a vector. `bytes` must be less than `BYTES`.
    ///
    /// # Safety
    /// As for [`Vector::store`], for `bytes` bytes.
    #[inline(always)]
    unsafe fn store_part(vector: Self::Vector, to: *mut u8, bytes: usize) {
        let mut private = [0u8; 64];
        // SAFETY: as in `load_part`; the caller guarantees the validity of `to`.
        unsafe {
            private.as_mut_ptr().cast::<Self::Vector>().write_unaligned(vector);
            super::copy::pieces(to, private.as_mut_ptr(), bytes);
        }
    }
}

/// Code that [`Arch::enter`] compiles for each instruction set. `run` and all functions that it
/// calls must be `#[inline(always)]`.
pub(super) trait Kernel {
    /// Runs the kernel, compiled for the instruction set `A`.
    ///
    /// # Safety
    /// Only [`Arch::enter`] of `A` calls this function. The fields of `self` meet the requirements
    /// of the type that implements this trait.
    unsafe fn run<A: Arch>(self);
}

/// An instruction set that this processor has.
///
/// # Invariants
/// **[I1]** A value exists only if the processor was found to have the instruction set. Only
/// [`Isa::new`] creates a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Isa(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(dead_code, reason = "each build uses only the variants of its own architecture")]
enum Level {
    Portable = 1,
    Sse2,
    Avx2,
    Avx512,
    Neon,
}

impl Level {
    /// The instruction sets for which this build has code, the best first.
    const BUILT: &'static [Self] = &[
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Self::Avx512,
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Self::Avx2,
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Self::Sse2,
        #[cfg(all(target_arch = "aarch64", target_endian = "little", not(miri)))]
        Self::Neon,
        #[cfg(any(test, miri, not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))))]
        Self::Portable,
    ];
}

impl Isa {
    /// Returns the instruction set of a level. Returns `None` if this processor or this build lacks
    /// the instruction set.
    fn new(level: Level) -> Option<Self> {
        let has = match level {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Level::Avx512 => {
                std::is_x86_feature_detected!("avx512f")
                    && std::is_x86_feature_detected!("avx512bw")
                    && std::is_x86_feature_detected!("avx512dq")
                    && std::is_x86_feature_detected!("avx512vl")
                    && std::is_x86_feature_detected!("avx2")
                    && std::is_x86_feature_detected!("f16c")
                    && std::is_x86_feature_detected!("bmi2")
            }
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Level::Avx2 => std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("f16c"),
            _ => true,
        };
        (has && Level::BUILT.contains(&level)).then_some(Self(level))
    }

    /// Returns the best instruction set of this processor.
    #[inline]
    pub(crate) fn best() -> Self {
        /// The level of the best instruction set as a number. 0 before the first call. Relaxed
        /// order is enough, because threads exchange only this number.
        static BEST: AtomicU8 = AtomicU8::new(0);
        let known = BEST.load(Ordering::Relaxed);
        for &level in Level::BUILT {
            if known == level as u8 {
                // [I1] only the detection below stores, and the processor does not change.
                return Self(level);
            }
        }
        Self::detect(&BEST)
    }

    #[cold]
    fn detect(best: &AtomicU8) -> Self {
        // The last level of the list runs on every processor, so the list is never empty.
        let isa = Self::available()
            .next()
            .unwrap_or_else(|| unreachable!("this build has no instruction set that runs on every processor"));
        best.store(isa.0 as u8, Ordering::Relaxed);
        isa
    }

    /// Returns the instruction sets that both this processor and this build have, the best first.
    pub(crate) fn available() -> impl Iterator<Item = Self> {
        Level::BUILT.iter().filter_map(|&level| Self::new(level))
    }

    /// Returns the name of the instruction set.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            Level::Portable => "portable",
            Level::Sse2 => "sse2",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
            Level::Neon => "neon",
        }
    }

    /// Runs `kernel` in a function that is compiled for this instruction set.
    ///
    /// # Safety
    /// The requirements of the kernel are met.
    #[inline]
    pub(super) unsafe fn enter<K: Kernel>(self, kernel: K) {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: the processor has the instruction set, [I1]. The caller meets the
            // requirements of the kernel.
            Level::Avx512 => unsafe { x86_64::Avx512::enter(kernel) },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above.
            Level::Avx2 => unsafe { x86_64::Avx2::enter(kernel) },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above.
            Level::Sse2 => unsafe { x86_64::Sse2::enter(kernel) },
            #[cfg(all(target_arch = "aarch64", target_endian = "little", not(miri)))]
            // SAFETY: as above.
            Level::Neon => unsafe { aarch64::Neon::enter(kernel) },
            #[cfg(any(test, miri, not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))))]
            // SAFETY: as above.
            Level::Portable => unsafe { portable::Portable::enter(kernel) },
            #[allow(
                unreachable_patterns,
                reason = "the arms above handle every level that an `Isa` can have, so this arm never runs"
            )]
            _ => unreachable!("this build has no code for {}", self.name()),
        }
    }
}
