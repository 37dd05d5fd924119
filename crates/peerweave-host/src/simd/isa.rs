//! Which instruction set is used. Looked up once; a value of [`Isa`] is the proof that the processor has it.

use super::arch::{self, Arch, Kernel};
use std::sync::atomic::{AtomicU8, Ordering};

/// An instruction set that this processor has.
///
/// # Invariants
/// **[I1]** A value exists only where the processor was seen to have the instruction set: only [`Isa::new`] makes one.
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
    /// The instruction set, if this processor has it.
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

    /// The best that this processor has.
    #[inline]
    pub(crate) fn best() -> Self {
        /// The level of the answer as a number, 0 before the first call. Relaxed: the number is all that there is to see.
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
        // The last of the list needs nothing, so that there is always one.
        let isa = Self::available().next().unwrap_or_else(|| unreachable!("every build has code that needs nothing"));
        best.store(isa.0 as u8, Ordering::Relaxed);
        isa
    }

    /// All that this processor has and this build has code for, the best first.
    pub(crate) fn available() -> impl Iterator<Item = Self> {
        Level::BUILT.iter().filter_map(|&level| Self::new(level))
    }

    /// Its name.
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
    /// What the kernel requires.
    #[inline]
    pub(super) unsafe fn enter<K: Kernel>(self, kernel: K) {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: [I1]; the kernel's requirements are the caller's.
            Level::Avx512 => unsafe { arch::x86_64::Avx512::enter(kernel) },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above.
            Level::Avx2 => unsafe { arch::x86_64::Avx2::enter(kernel) },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above.
            Level::Sse2 => unsafe { arch::x86_64::Sse2::enter(kernel) },
            #[cfg(all(target_arch = "aarch64", target_endian = "little", not(miri)))]
            // SAFETY: as above.
            Level::Neon => unsafe { arch::aarch64::Neon::enter(kernel) },
            #[cfg(any(test, miri, not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))))]
            // SAFETY: as above.
            Level::Portable => unsafe { arch::portable::Portable::enter(kernel) },
            #[allow(unreachable_patterns, reason = "reachable in no build: [I1], and `new` makes built levels only")]
            _ => unreachable!("{} is not built", self.name()),
        }
    }
}
