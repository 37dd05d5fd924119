//! The instruction sets: which one this processor has, and how a register of bytes is read and
//! written.
//!
//! No algorithm is here. Invariant: every access of the movers and reducers to shared memory is one
//! of the functions of this module, and none of them is an ordinary Rust load or store.
//!
//! [`portable`] is the specification: relaxed atomic accesses of single bytes. The file of an
//! instruction set does the same by one instruction of inline assembly; the head of [`super`]
//! explains why that is sound.

use super::lanes::{Lanes, Storage};
use std::sync::atomic::{AtomicU8, Ordering};

#[cfg(all(target_arch = "aarch64", target_endian = "little", not(miri)))]
pub(super) mod aarch64;
#[cfg(any(test, miri, not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))))]
pub(super) mod portable;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) mod x86_64;

/// Accesses of 1, 2, 4 and 8 bytes at any alignment, which every processor of this architecture
/// supports.
pub(super) mod word {
    #[cfg(all(target_arch = "aarch64", target_endian = "little", not(miri)))]
    pub(in super::super) use super::aarch64::word::*;
    #[cfg(any(miri, not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))))]
    pub(in super::super) use super::portable::word::*;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    pub(in super::super) use super::x86_64::word::*;
}

/// A register of 16 bytes that every processor of this architecture has.
#[cfg(all(target_arch = "aarch64", target_endian = "little", not(miri)))]
pub(super) use self::aarch64::Quad as Basic;
#[cfg(any(miri, not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))))]
pub(super) use self::portable::Sixteen as Basic;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) use self::x86_64::Xmm as Basic;

/// The value of one vector register, as bytes in memory order.
///
/// # Safety
/// An implementation promises: **[V1]** the type has exactly [`Self::BYTES`] bytes, none of them
/// padding, and every bit pattern is valid; **[V2]** a load or store touches exactly those bytes of
/// memory, as relaxed atomic accesses would, and no other.
///
/// Every method requires: the addressed bytes are mapped and may be accessed in this way (others
/// may access them atomically, or by these methods, at the same time); the processor has the
/// instruction set that the type belongs to.
pub(super) unsafe trait Vector: Copy {
    /// Size in bytes: 16, 32 or 64.
    const BYTES: usize;

    /// Reads `BYTES` bytes at any address.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn load(from: *const u8) -> Self;

    /// Writes `BYTES` bytes at any address.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn store(self, to: *mut u8);

    /// Writes `BYTES` bytes past the caches where the processor can; they become visible to others
    /// no later than at [`Arch::fence_streaming`].
    ///
    /// # Safety
    /// See the trait; and `to` is a multiple of `BYTES`.
    unsafe fn store_streaming(self, to: *mut u8);

    /// Reads four consecutive vectors.
    ///
    /// # Safety
    /// See the trait.
    #[inline(always)]
    unsafe fn load_four(from: *const u8) -> [Self; 4] {
        // SAFETY: the caller guarantees it for all four.
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
    /// See the trait.
    #[inline(always)]
    unsafe fn store_four(vectors: [Self; 4], to: *mut u8) {
        for (i, vector) in vectors.iter().enumerate() {
            // SAFETY: the caller guarantees it for all four.
            unsafe { vector.store(to.add(i * Self::BYTES)) };
        }
    }

    /// Writes four consecutive vectors past the caches.
    ///
    /// # Safety
    /// See the trait; and `to` is a multiple of `BYTES`.
    #[inline(always)]
    unsafe fn store_four_streaming(vectors: [Self; 4], to: *mut u8) {
        for (i, vector) in vectors.iter().enumerate() {
            // SAFETY: the caller guarantees it for all four.
            unsafe { vector.store_streaming(to.add(i * Self::BYTES)) };
        }
    }
}

/// An instruction set: its registers, and how to run code compiled for it.
///
/// # Safety
/// An implementation promises that **[A1]** `Raw<S>` and `Vector` have the same size.
///
/// Every method requires that the processor has the instruction set.
pub(super) unsafe trait Arch: Copy + 'static {
    /// The register.
    type Vector: Vector;
    /// A register seen as stored elements.
    type Raw<S: Storage>: Lanes<Lane = S>;
    /// The values of those elements.
    type Values<S: Storage>: Lanes<Lane = S::Value>;

    /// Runs `kernel` in a function that is compiled for this instruction set.
    ///
    /// # Safety
    /// The processor has the instruction set, and what the kernel itself requires.
    unsafe fn enter<K: Kernel>(kernel: K);

    /// Orders streaming stores before every later store of this thread, as ordinary stores are.
    fn fence_streaming();

    /// Copies with the processor's own string instruction. Returns `false`, and copies nothing, if
    /// the processor has no fast one.
    ///
    /// # Safety
    /// As for [`super::copy()`].
    #[inline(always)]
    unsafe fn string_copy(_dst: *mut u8, _src: *const u8, _bytes: usize) -> bool {
        false
    }

    /// Zeroes with the processor's own string instruction. Returns `false`, and writes nothing, if
    /// the processor has no fast one.
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
    /// See the trait.
    #[inline(always)]
    unsafe fn widen_f16(from: &[u16], into: &mut [f32]) {
        super::float16::widen_all(from, into);
    }

    /// Converts f32 to binary16, rounding to nearest, ties to even. No input is a NaN other than
    /// the canonical one.
    ///
    /// # Safety
    /// See the trait.
    #[inline(always)]
    unsafe fn narrow_f16(from: &[f32], into: &mut [u16]) {
        super::float16::narrow_all(from, into);
    }

    /// Reads the first `bytes < BYTES` bytes of a vector; the rest is zero.
    ///
    /// # Safety
    /// As for [`Vector::load`], for `bytes` bytes.
    #[inline(always)]
    unsafe fn load_part(from: *const u8, bytes: usize) -> Self::Vector {
        let mut private = [0u8; 64];
        // SAFETY: `private` is ours and longer than any vector, of which [V1] allows every bit
        // pattern; the caller guarantees the validity of `from`.
        unsafe {
            super::copy::pieces(private.as_mut_ptr(), from, bytes);
            private.as_ptr().cast::<Self::Vector>().read_unaligned()
        }
    }

    /// Writes the first `bytes < BYTES` bytes of a vector.
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

/// Code that [`Arch::enter`] compiles for each instruction set. `run` must be
/// `#[inline(always)]`, with everything it calls.
pub(super) trait Kernel {
    /// Runs the code for the instruction set `A`.
    ///
    /// # Safety
    /// [`Arch::enter`] of `A` calls this; and the requirements of the kernel's fields hold.
    unsafe fn run<A: Arch>(self);
}

/// An instruction set that this processor has.
///
/// # Invariants
/// **[I1]** A value exists only if the processor was found to have the instruction set: only
/// [`Isa::new`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Isa(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(dead_code, reason = "each architecture has its own")]
enum Level {
    Portable = 1,
    Sse2,
    Avx2,
    Avx512,
    Neon,
}

impl Level {
    /// Every level that this build has code for, the best first.
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
    /// Returns the instruction set, if this processor has it.
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
        /// The level of the best instruction set as a number; 0 before the first call. Relaxed
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
        // The last level of the list runs on every processor, so there is always one.
        let isa = Self::available().next().unwrap_or_else(|| unreachable!("every build has code for every processor"));
        best.store(isa.0 as u8, Ordering::Relaxed);
        isa
    }

    /// Returns the instruction sets of this processor that this build has code for, the best first.
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

    /// Runs a kernel compiled for this instruction set.
    ///
    /// # Safety
    /// As for the kernel.
    #[inline]
    pub(super) unsafe fn enter<K: Kernel>(self, kernel: K) {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: [I1]; the kernel's requirements are the caller's.
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
            #[allow(unreachable_patterns, reason = "reachable in no build: [I1], and `new` makes built levels only")]
            _ => unreachable!("{} is not built", self.name()),
        }
    }
}
