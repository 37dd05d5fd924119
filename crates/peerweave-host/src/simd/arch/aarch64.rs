//! The instruction set of little-endian aarch64: NEON, which every aarch64 processor has.
//!
//! Invariant: an assembly block contains only loads or only stores, and accesses exactly the bytes
//! that its function names.

use super::super::lanes::Storage;
use super::{Arch, Kernel, Vector};
use core::arch::aarch64::{float32x4_t, uint8x16_t, uint16x4_t};
use core::arch::asm;

/// Reads and writes of 1, 2, 4 or 8 bytes, each with one load or store instruction.
pub(crate) mod word {
    use core::arch::asm;

    macro_rules! word {
        ($($t:ty, $load_asm:literal, $store_asm:literal: $load:ident $store:ident),*) => {$(
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
                    asm!($load_asm, value = out(reg) value, from = in(reg) from, options(readonly, nostack, preserves_flags));
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
                unsafe { asm!($store_asm, value = in(reg) value, to = in(reg) to, options(nostack, preserves_flags)) };
            }
        )*};
    }

    word!(
        u8, "ldrb {value:w}, [{from}]", "strb {value:w}, [{to}]": load_u8 store_u8,
        u16, "ldrh {value:w}, [{from}]", "strh {value:w}, [{to}]": load_u16 store_u16,
        u32, "ldr {value:w}, [{from}]", "str {value:w}, [{to}]": load_u32 store_u32,
        u64, "ldr {value:x}, [{from}]", "str {value:x}, [{to}]": load_u64 store_u64
    );
}

/// A NEON register, which has 16 bytes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Quad(uint8x16_t);

// SAFETY: [V1] a transparent vector type of the core library; [V2] the assembly below.
unsafe impl Vector for Quad {
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        let value: uint8x16_t;
        // SAFETY: reads exactly 16 bytes, at any alignment; the caller guarantees the validity of
        // the address.
        unsafe {
            asm!("ldr {value:q}, [{from}]", value = out(vreg) value, from = in(reg) from,
                options(readonly, nostack, preserves_flags));
        }
        Self(value)
    }

    #[inline(always)]
    unsafe fn load_four(from: *const u8) -> [Self; 4] {
        let (a, b, c, d): (uint8x16_t, uint8x16_t, uint8x16_t, uint8x16_t);
        // SAFETY: reads exactly 64 bytes, at any alignment; the caller guarantees the validity of
        // the address.
        unsafe {
            asm!("ldp {a:q}, {b:q}, [{from}]", "ldp {c:q}, {d:q}, [{from}, #32]",
                a = out(vreg) a, b = out(vreg) b, c = out(vreg) c, d = out(vreg) d, from = in(reg) from,
                options(readonly, nostack, preserves_flags));
        }
        [Self(a), Self(b), Self(c), Self(d)]
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: writes exactly 16 bytes, at any alignment; the caller guarantees the validity of
        // the address.
        unsafe { asm!("str {value:q}, [{to}]", value = in(vreg) self.0, to = in(reg) to, options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    unsafe fn store_four([a, b, c, d]: [Self; 4], to: *mut u8) {
        // SAFETY: writes exactly 64 bytes, at any alignment; the caller guarantees the validity of
        // the address.
        unsafe {
            asm!("stp {a:q}, {b:q}, [{to}]", "stp {c:q}, {d:q}, [{to}, #32]",
                a = in(vreg) a.0, b = in(vreg) b.0, c = in(vreg) c.0, d = in(vreg) d.0, to = in(reg) to,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn store_streaming(self, to: *mut u8) {
        // The architecture has non-temporal stores only for pairs of registers. So a single
        // register is stored as usual. SAFETY: guaranteed by the caller.
        unsafe { self.store(to) };
    }

    #[inline(always)]
    unsafe fn store_four_streaming([a, b, c, d]: [Self; 4], to: *mut u8) {
        // SAFETY: writes exactly 64 bytes; the caller guarantees the validity of the address.
        unsafe {
            asm!("stnp {a:q}, {b:q}, [{to}]", "stnp {c:q}, {d:q}, [{to}, #32]",
                a = in(vreg) a.0, b = in(vreg) b.0, c = in(vreg) c.0, d = in(vreg) d.0, to = in(reg) to,
                options(nostack, preserves_flags));
        }
    }
}

/// The instruction set NEON, which every aarch64 processor has.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

// SAFETY: [A1] `Raw` and `Vector` have 16 bytes.
unsafe impl Arch for Neon {
    type Vector = Quad;
    type Raw<S: Storage> = S::Raw16;
    type Values<S: Storage> = S::Values16;

    #[inline]
    unsafe fn enter<K: Kernel>(kernel: K) {
        // SAFETY: guaranteed by the caller; NEON is part of the architecture.
        unsafe { kernel.run::<Self>() };
    }

    #[inline(always)]
    fn fence_streaming() {
        // SAFETY: touches no memory and no register. `nomem` is not set, because the compiler must
        // not move accesses across the fence either.
        unsafe { asm!("dmb ishst", options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    unsafe fn widen_f16(from: &[u16], into: &mut [f32]) {
        for (bits, values) in from.chunks_exact(4).zip(into.chunks_exact_mut(4)) {
            // SAFETY: both chunks have exactly four elements, of private memory. The conversion is
            // part of NEON; it reads no memory.
            unsafe {
                let narrow: uint16x4_t = bits.as_ptr().cast::<uint16x4_t>().read_unaligned();
                let wide: float32x4_t;
                asm!("fcvtl {wide:v}.4s, {narrow:v}.4h", wide = lateout(vreg) wide, narrow = in(vreg) narrow,
                    options(pure, nomem, nostack, preserves_flags));
                values.as_mut_ptr().cast::<float32x4_t>().write_unaligned(wide);
            }
        }
    }

    #[inline(always)]
    unsafe fn narrow_f16(from: &[f32], into: &mut [u16]) {
        for (values, bits) in from.chunks_exact(4).zip(into.chunks_exact_mut(4)) {
            // SAFETY: as in `widen_f16`. Rounds as configured in FPCR. Rust requires the default,
            // which is rounding to nearest even.
            unsafe {
                let wide: float32x4_t = values.as_ptr().cast::<float32x4_t>().read_unaligned();
                let narrow: uint16x4_t;
                asm!("fcvtn {narrow:v}.4h, {wide:v}.4s", narrow = lateout(vreg) narrow, wide = in(vreg) wide,
                    options(pure, nomem, nostack, preserves_flags));
                bits.as_mut_ptr().cast::<uint16x4_t>().write_unaligned(narrow);
            }
        }
    }
}
