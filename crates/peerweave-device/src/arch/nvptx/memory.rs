//! Fences, and strong loads and stores of global memory. PTX defines which operations are strong.
//! The loads and stores access words of 32 or 64 bits, or lines of 128 bits.

use crate::arch::{Access, Cta, Fence, Gpu, Sys};
use core::arch::asm;

macro_rules! access {
    ($reach:ident $scope:literal: $($t:ty as $bits:literal in $class:ident),*) => {
        $(
            // SAFETY: one instruction each, of the width of the type.
            unsafe impl Access<$reach> for $t {
                #[inline(always)]
                unsafe fn load_relaxed(from: *const Self) -> Self {
                    let value: Self;
                    // SAFETY: the caller promises an aligned, accessible word in global memory.
                    unsafe {
                        asm!(concat!("ld.relaxed.", $scope, ".global.", $bits, " {v}, [{p}];"),
                            v = out($class) value, p = in(reg64) from, options(nostack));
                    }
                    value
                }

                #[inline(always)]
                unsafe fn load_acquire(from: *const Self) -> Self {
                    let value: Self;
                    // SAFETY: the caller promises an aligned, accessible word in global memory.
                    unsafe {
                        asm!(concat!("ld.acquire.", $scope, ".global.", $bits, " {v}, [{p}];"),
                            v = out($class) value, p = in(reg64) from, options(nostack));
                    }
                    value
                }

                #[inline(always)]
                unsafe fn store_relaxed(to: *mut Self, value: Self) {
                    // SAFETY: the caller promises an aligned, accessible word in global memory.
                    unsafe {
                        asm!(concat!("st.relaxed.", $scope, ".global.", $bits, " [{p}], {v};"),
                            v = in($class) value, p = in(reg64) to, options(nostack));
                    }
                }

                #[inline(always)]
                unsafe fn store_release(to: *mut Self, value: Self) {
                    // SAFETY: the caller promises an aligned, accessible word in global memory.
                    unsafe {
                        asm!(concat!("st.release.", $scope, ".global.", $bits, " [{p}], {v};"),
                            v = in($class) value, p = in(reg64) to, options(nostack));
                    }
                }
            }
        )*

        impl Fence for $reach {
            #[inline(always)]
            fn acq_rel() {
                // SAFETY: a fence; memory counts as changed.
                unsafe { asm!(concat!("fence.acq_rel.", $scope, ";"), options(nostack)) };
            }

            #[inline(always)]
            fn seq_cst() {
                // SAFETY: a fence; memory counts as changed.
                unsafe { asm!(concat!("fence.sc.", $scope, ";"), options(nostack)) };
            }
        }
    };
}

access!(Cta "cta": u32 as "b32" in reg32, u64 as "b64" in reg64);
access!(Gpu "gpu": u32 as "b32" in reg32, u64 as "b64" in reg64);
access!(Sys "sys": u32 as "b32" in reg32, u64 as "b64" in reg64);

/// Reads 16 bytes by one relaxed atomic access of system scope.
///
/// # Safety
/// `from` points to 16 bytes in global memory, aligned to 16, that this thread can access.
#[inline(always)]
pub unsafe fn load_line_relaxed(from: *const u128) -> [u64; 2] {
    let (low, high): (u64, u64);
    // SAFETY: the caller promises an aligned, accessible line in global memory.
    unsafe {
        asm!("{{ .reg .b128 q; ld.relaxed.sys.global.b128 q, [{p}]; mov.b128 {{{low}, {high}}}, q; }}",
            low = out(reg64) low, high = out(reg64) high, p = in(reg64) from, options(nostack));
    }
    [low, high]
}

/// Writes 16 bytes by one relaxed atomic access of system scope.
///
/// # Safety
/// As for [`load_line_relaxed`].
#[inline(always)]
pub unsafe fn store_line_relaxed(to: *mut u128, value: [u64; 2]) {
    // SAFETY: the caller promises an aligned, accessible line in global memory.
    unsafe {
        asm!("{{ .reg .b128 q; mov.b128 q, {{{low}, {high}}}; st.relaxed.sys.global.b128 [{p}], q; }}",
            low = in(reg64) value[0], high = in(reg64) value[1], p = in(reg64) to, options(nostack));
    }
}
