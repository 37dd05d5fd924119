//! The instruction sets of x86-64: SSE2 (which every x86-64 processor has), AVX2 and AVX-512.
//!
//! Invariant: an assembly block contains only loads or only stores, and accesses exactly the bytes
//! that its function names.
//!
//! The functions that load and store have `#[target_feature]`, so they cannot be `inline(always)`.
//! They are still inlined into every caller that has the feature: [`Arch::enter`] compiles the
//! callers with the feature, and each function has only a few instructions.

use super::super::lanes::Storage;
use super::{Arch, Kernel, Vector};
use core::arch::asm;
use core::arch::x86_64::{
    __cpuid, __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_storeu_ps, _mm256_storeu_si256, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_loadu_ps,
    _mm512_storeu_ps,
};
use std::sync::OnceLock;

/// Reads and writes of 1, 2, 4 or 8 bytes, each with one `mov` instruction.
pub(crate) mod word {
    use core::arch::asm;

    macro_rules! word {
        ($($t:ty, $register:ident, $load_asm:literal, $store_asm:literal: $load:ident $store:ident),*) => {$(
            /// Reads one integer at any address.
            ///
            /// # Safety
            /// As for [`super::Vector::load`].
            #[inline(always)]
            pub(crate) unsafe fn $load(from: *const u8) -> $t {
                let value: $t;
                // SAFETY: reads exactly the word; the caller guarantees the validity of the
                // address.
                unsafe {
                    asm!($load_asm, value = out($register) value, from = in(reg) from,
                        options(readonly, nostack, preserves_flags));
                }
                value
            }

            /// Writes one integer at any address.
            ///
            /// # Safety
            /// As for [`super::Vector::store`].
            #[inline(always)]
            pub(crate) unsafe fn $store(value: $t, to: *mut u8) {
                // SAFETY: writes exactly the word; the caller guarantees the validity of the
                // address.
                unsafe {
                    asm!($store_asm, value = in($register) value, to = in(reg) to, options(nostack, preserves_flags));
                }
            }
        )*};
    }

    word!(
        u8, reg_byte, "mov {value}, byte ptr [{from}]", "mov byte ptr [{to}], {value}": load_u8 store_u8,
        u16, reg, "movzx {value:e}, word ptr [{from}]", "mov word ptr [{to}], {value:x}": load_u16 store_u16,
        u32, reg, "mov {value:e}, dword ptr [{from}]", "mov dword ptr [{to}], {value:e}": load_u32 store_u32,
        u64, reg, "mov {value:r}, qword ptr [{from}]", "mov qword ptr [{to}], {value:r}": load_u64 store_u64
    );
}

macro_rules! vector {
    ($(#[$doc:meta])* $name:ident, $module:ident, $register:ty, $class:ident, $bytes:literal, [$b1:literal $b2:literal $b3:literal],
        $features:literal, $move:literal, $stream:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        #[repr(transparent)]
        pub(crate) struct $name($register);

        mod $module {
            use super::*;

            /// # Safety
            /// As for [`Vector::load`].
            #[inline]
            #[target_feature(enable = $features)]
            pub(super) unsafe fn load(from: *const u8) -> $register {
                let value: $register;
                // SAFETY: reads exactly one vector, at any alignment; the caller guarantees the
                // validity of the address.
                unsafe {
                    asm!(concat!($move, " {value}, [{from}]"), value = out($class) value, from = in(reg) from,
                        options(readonly, nostack, preserves_flags));
                }
                value
            }

            /// # Safety
            /// As for [`Vector::load_four`].
            #[inline]
            #[target_feature(enable = $features)]
            pub(super) unsafe fn load_four(from: *const u8) -> [$register; 4] {
                let (a, b, c, d): ($register, $register, $register, $register);
                // SAFETY: reads exactly four vectors, at any alignment; the caller guarantees the
                // validity of the address.
                unsafe {
                    asm!(
                        concat!($move, " {a}, [{from}]"),
                        concat!($move, " {b}, [{from} + ", $b1, "]"),
                        concat!($move, " {c}, [{from} + ", $b2, "]"),
                        concat!($move, " {d}, [{from} + ", $b3, "]"),
                        a = out($class) a, b = out($class) b, c = out($class) c, d = out($class) d, from = in(reg) from,
                        options(readonly, nostack, preserves_flags)
                    );
                }
                [a, b, c, d]
            }

            /// # Safety
            /// As for [`Vector::store`].
            #[inline]
            #[target_feature(enable = $features)]
            pub(super) unsafe fn store(value: $register, to: *mut u8) {
                // SAFETY: writes exactly one vector, at any alignment; the caller guarantees the
                // validity of the address.
                unsafe {
                    asm!(concat!($move, " [{to}], {value}"), value = in($class) value, to = in(reg) to,
                        options(nostack, preserves_flags));
                }
            }

            /// # Safety
            /// As for [`Vector::store_four`].
            #[inline]
            #[target_feature(enable = $features)]
            pub(super) unsafe fn store_four([a, b, c, d]: [$register; 4], to: *mut u8) {
                // SAFETY: writes exactly four vectors, at any alignment; the caller guarantees the
                // validity of the address.
                unsafe {
                    asm!(
                        concat!($move, " [{to}], {a}"),
                        concat!($move, " [{to} + ", $b1, "], {b}"),
                        concat!($move, " [{to} + ", $b2, "], {c}"),
                        concat!($move, " [{to} + ", $b3, "], {d}"),
                        a = in($class) a, b = in($class) b, c = in($class) c, d = in($class) d, to = in(reg) to,
                        options(nostack, preserves_flags)
                    );
                }
            }

            /// # Safety
            /// As for [`Vector::store_streaming`].
            #[inline]
            #[target_feature(enable = $features)]
            pub(super) unsafe fn stream(value: $register, to: *mut u8) {
                // SAFETY: writes exactly one vector; the caller guarantees the validity of the
                // address and its alignment.
                unsafe {
                    asm!(concat!($stream, " [{to}], {value}"), value = in($class) value, to = in(reg) to,
                        options(nostack, preserves_flags));
                }
            }

            /// # Safety
            /// As for [`Vector::store_four_streaming`].
            #[inline]
            #[target_feature(enable = $features)]
            pub(super) unsafe fn stream_four([a, b, c, d]: [$register; 4], to: *mut u8) {
                // SAFETY: writes exactly four vectors; the caller guarantees the validity of the
                // address and its alignment.
                unsafe {
                    asm!(
                        concat!($stream, " [{to}], {a}"),
                        concat!($stream, " [{to} + ", $b1, "], {b}"),
                        concat!($stream, " [{to} + ", $b2, "], {c}"),
                        concat!($stream, " [{to} + ", $b3, "], {d}"),
                        a = in($class) a, b = in($class) b, c = in($class) c, d = in($class) d, to = in(reg) to,
                        options(nostack, preserves_flags)
                    );
                }
            }
        }

        // SAFETY: [V1] a transparent vector type of the core library; [V2] the assembly above.
        unsafe impl Vector for $name {
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn load(from: *const u8) -> Self {
                // SAFETY: guaranteed by the caller, including the instruction set.
                Self(unsafe { $module::load(from) })
            }

            #[inline(always)]
            unsafe fn load_four(from: *const u8) -> [Self; 4] {
                // SAFETY: guaranteed by the caller, including the instruction set.
                let [a, b, c, d] = unsafe { $module::load_four(from) };
                [Self(a), Self(b), Self(c), Self(d)]
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut u8) {
                // SAFETY: guaranteed by the caller, including the instruction set.
                unsafe { $module::store(self.0, to) };
            }

            #[inline(always)]
            unsafe fn store_four([a, b, c, d]: [Self; 4], to: *mut u8) {
                // SAFETY: guaranteed by the caller, including the instruction set.
                unsafe { $module::store_four([a.0, b.0, c.0, d.0], to) };
            }

            #[inline(always)]
            unsafe fn store_streaming(self, to: *mut u8) {
                // SAFETY: guaranteed by the caller, including the instruction set.
                unsafe { $module::stream(self.0, to) };
            }

            #[inline(always)]
            unsafe fn store_four_streaming([a, b, c, d]: [Self; 4], to: *mut u8) {
                // SAFETY: guaranteed by the caller, including the instruction set.
                unsafe { $module::stream_four([a.0, b.0, c.0, d.0], to) };
            }
        }
    };
}

vector!(
    /// An SSE2 register, which has 16 bytes.
    Xmm, xmm, __m128i, xmm_reg, 16, [16 32 48], "sse2", "movdqu", "movntdq"
);
vector!(
    /// An AVX register, which has 32 bytes.
    Ymm, ymm, __m256i, ymm_reg, 32, [32 64 96], "avx2", "vmovdqu", "vmovntdq"
);
vector!(
    /// An AVX-512 register, which has 64 bytes.
    Zmm, zmm, __m512i, zmm_reg, 64, [64 128 192], "avx512f", "vmovdqu64", "vmovntdq"
);

#[inline(always)]
fn store_fence() {
    // SAFETY: touches no memory and no register. `nomem` is not set, because the compiler must not
    // move accesses across the fence either.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}

/// Returns whether the processor has fast string instructions ("enhanced" `rep movsb` and
/// `rep stosb`). Such instructions move whole cache lines, and do not read the destination first if
/// the size is large.
#[inline(always)]
fn has_fast_strings() -> bool {
    std::is_x86_feature_detected!("ermsb")
}

/// Returns whether `rep movsb` copies faster than loads and stores of vectors. It is faster on
/// AMD's processors. On Intel's processors, vectors are up to twice as fast up to 8 MiB. Above this
/// size, streaming stores are 1.3 to 1.7 times as fast (measured on family 6, model 207).
#[inline]
fn has_fast_string_copy() -> bool {
    static IS_FAST: OnceLock<bool> = OnceLock::new();
    *IS_FAST.get_or_init(|| {
        let leaf = __cpuid(0);
        let vendor = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat();
        has_fast_strings() && matches!(&vendor[..], b"AuthenticAMD" | b"HygonGenuine")
    })
}

/// Implements the methods of [`Arch`] that use string instructions. These methods are the same for
/// all vector widths.
macro_rules! strings {
    () => {
        /// # Safety
        /// As for [`Arch::string_copy`].
        #[inline(always)]
        unsafe fn string_copy(dst: *mut u8, src: *const u8, bytes: usize) -> bool {
            let fast = has_fast_string_copy();
            if fast {
                // SAFETY: the ABI requires the direction flag to be clear. The instruction reads
                // and writes exactly `bytes` bytes, which the caller guarantees to be valid.
                unsafe {
                    asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") dst => _, inout("rsi") src => _,
                        options(nostack, preserves_flags));
                }
            }
            fast
        }

        /// # Safety
        /// As for [`Arch::string_zero`].
        #[inline(always)]
        unsafe fn string_zero(dst: *mut u8, bytes: usize) -> bool {
            let fast = has_fast_strings();
            if fast {
                // SAFETY: as in `string_copy`.
                unsafe {
                    asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") dst => _, in("al") 0u8, options(nostack, preserves_flags));
                }
            }
            fast
        }
    };
}

/// The instruction set SSE2, which every x86-64 processor has.
#[derive(Clone, Copy)]
pub(crate) struct Sse2;

// SAFETY: [A1] `Raw` and `Vector` have 16 bytes.
unsafe impl Arch for Sse2 {
    type Vector = Xmm;
    type Raw<S: Storage> = S::Raw16;
    type Values<S: Storage> = S::Values16;

    #[inline]
    unsafe fn enter<K: Kernel>(kernel: K) {
        // SAFETY: guaranteed by the caller; SSE2 is part of the architecture.
        unsafe { kernel.run::<Self>() };
    }

    #[inline(always)]
    fn fence_streaming() {
        store_fence();
    }

    strings!();
}

/// The instruction set AVX2 with F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Runs a kernel compiled for AVX2.
///
/// # Safety
/// As for [`Arch::enter`] of [`Avx2`].
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn run_avx2<K: Kernel>(kernel: K) {
    // SAFETY: guaranteed by the caller.
    unsafe { kernel.run::<Avx2>() };
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen_f16_avx2(from: &[u16], into: &mut [f32]) {
    for (bits, values) in from.chunks_exact(8).zip(into.chunks_exact_mut(8)) {
        // SAFETY: both chunks have exactly eight elements, of private memory.
        unsafe { _mm256_storeu_ps(values.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(bits.as_ptr().cast()))) };
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow_f16_avx2(from: &[f32], into: &mut [u16]) {
    for (values, bits) in from.chunks_exact(8).zip(into.chunks_exact_mut(8)) {
        // SAFETY: both chunks have exactly eight elements, of private memory. Rounding mode 0 means
        // rounding to nearest even.
        unsafe { _mm_storeu_si128(bits.as_mut_ptr().cast(), _mm256_cvtps_ph::<0>(_mm256_loadu_ps(values.as_ptr()))) };
    }
}

// SAFETY: [A1] `Raw` and `Vector` have 32 bytes.
unsafe impl Arch for Avx2 {
    type Vector = Ymm;
    type Raw<S: Storage> = S::Raw32;
    type Values<S: Storage> = S::Values32;

    #[inline]
    unsafe fn enter<K: Kernel>(kernel: K) {
        // SAFETY: guaranteed by the caller.
        unsafe { run_avx2(kernel) };
    }

    #[inline(always)]
    fn fence_streaming() {
        store_fence();
    }

    strings!();

    #[inline(always)]
    unsafe fn widen_f16(from: &[u16], into: &mut [f32]) {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { widen_f16_avx2(from, into) };
    }

    #[inline(always)]
    unsafe fn narrow_f16(from: &[f32], into: &mut [u16]) {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { narrow_f16_avx2(from, into) };
    }
}

/// The instruction set AVX-512 F, BW, DQ and VL, with AVX2, F16C and BMI2.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// Runs a kernel compiled for AVX-512.
///
/// # Safety
/// As for [`Arch::enter`] of [`Avx512`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,bmi2")]
unsafe fn run_avx512<K: Kernel>(kernel: K) {
    // SAFETY: guaranteed by the caller.
    unsafe { kernel.run::<Avx512>() };
}

#[inline]
#[target_feature(enable = "avx512f")]
fn widen_f16_avx512(from: &[u16], into: &mut [f32]) {
    for (bits, values) in from.chunks_exact(16).zip(into.chunks_exact_mut(16)) {
        // SAFETY: both chunks have exactly sixteen elements, of private memory.
        unsafe { _mm512_storeu_ps(values.as_mut_ptr(), _mm512_cvtph_ps(_mm256_loadu_si256(bits.as_ptr().cast()))) };
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn narrow_f16_avx512(from: &[f32], into: &mut [u16]) {
    for (values, bits) in from.chunks_exact(16).zip(into.chunks_exact_mut(16)) {
        // SAFETY: both chunks have exactly sixteen elements, of private memory. Rounding mode 0
        // means rounding to nearest even.
        unsafe { _mm256_storeu_si256(bits.as_mut_ptr().cast(), _mm512_cvtps_ph::<0>(_mm512_loadu_ps(values.as_ptr()))) };
    }
}

/// # Safety
/// As for [`Arch::load_part`] of [`Avx512`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
unsafe fn load_part_avx512(from: *const u8, bytes: usize) -> __m512i {
    let value: __m512i;
    // SAFETY: a masked load neither reads nor faults on bytes whose mask bit is clear ("fault
    // suppression", Intel SDM volume 2, EVEX exceptions class E4). The mask has the low `bytes`
    // bits set. The caller guarantees that the bytes of these bits are valid.
    unsafe {
        asm!("vmovdqu8 {value}{{{mask}}}{{z}}, [{from}]", value = out(zmm_reg) value, mask = in(kreg) low_bits(bytes),
            from = in(reg) from, options(readonly, nostack, preserves_flags));
    }
    value
}

/// # Safety
/// As for [`Arch::store_part`] of [`Avx512`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
unsafe fn store_part_avx512(value: __m512i, to: *mut u8, bytes: usize) {
    // SAFETY: as in `load_part_avx512`. Bytes whose mask bit is clear are not written.
    unsafe {
        asm!("vmovdqu8 [{to}]{{{mask}}}, {value}", value = in(zmm_reg) value, mask = in(kreg) low_bits(bytes),
            to = in(reg) to, options(nostack, preserves_flags));
    }
}

/// Returns a mask with the low `count` bits set. `count` must be less than 64.
#[inline(always)]
fn low_bits(count: usize) -> u64 {
    debug_assert!(count < 64);
    (1u64 << (count & 63)) - 1
}

// SAFETY: [A1] `Raw` and `Vector` have 64 bytes.
unsafe impl Arch for Avx512 {
    type Vector = Zmm;
    type Raw<S: Storage> = S::Raw64;
    type Values<S: Storage> = S::Values64;

    #[inline]
    unsafe fn enter<K: Kernel>(kernel: K) {
        // SAFETY: guaranteed by the caller.
        unsafe { run_avx512(kernel) };
    }

    #[inline(always)]
    fn fence_streaming() {
        store_fence();
    }

    strings!();

    #[inline(always)]
    unsafe fn widen_f16(from: &[u16], into: &mut [f32]) {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { widen_f16_avx512(from, into) };
    }

    #[inline(always)]
    unsafe fn narrow_f16(from: &[f32], into: &mut [u16]) {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { narrow_f16_avx512(from, into) };
    }

    #[inline(always)]
    unsafe fn load_part(from: *const u8, bytes: usize) -> Zmm {
        // SAFETY: guaranteed by the caller.
        Zmm(unsafe { load_part_avx512(from, bytes) })
    }

    #[inline(always)]
    unsafe fn store_part(vector: Zmm, to: *mut u8, bytes: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { store_part_avx512(vector.0, to, bytes) };
    }
}
