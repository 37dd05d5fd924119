//! Accesses to a multicast address. One instruction accesses the memory of every GPU that is bound
//! to the address. Requires sm_90.
//!
//! If the PTX is for an architecture before sm_90, [`AVAILABLE`] is false, and no function of this
//! module may be called. All accesses are relaxed and have system scope. Fences and signals order
//! these accesses.

/// Whether the PTX is for an architecture with multicast accesses: sm_90 or later.
pub const AVAILABLE: bool = cfg!(target_feature = "sm_90");

pub use crate::arch::ops::multimem::{Bf16x8, F16x8, F32x4, Multimem, MultimemBits, MultimemOrd};

/// Implements a method that loads one value from a multicast address, by one instruction.
/// Architectures before sm_90 lack this instruction. In PTX for these architectures, the method
/// traps.
macro_rules! load_scalar {
    ($name:ident, $text:literal, $class:ident) => {
        /// # Safety
        /// As for [`Multimem::store`].
        #[inline(always)]
        unsafe fn $name(from: *const Self) -> Self {
            #[cfg(target_feature = "sm_90")]
            {
                let value: Self;
                // SAFETY: the caller promises an accessible multicast address.
                unsafe {
                    core::arch::asm!(concat!("multimem.ld_reduce.relaxed.sys.global.", $text, " {v}, [{p}];"), v = out($class) value,
                        p = in(reg64) from, options(nostack));
                }
                value
            }
            #[cfg(not(target_feature = "sm_90"))]
            {
                let _ = from;
                crate::arch::trap()
            }
        }
    };
}

/// Implements a method that writes one value to a multicast address, by one instruction.
/// Architectures before sm_90 lack this instruction. In PTX for these architectures, the method
/// does nothing.
macro_rules! write_scalar {
    ($name:ident, $text:literal, $class:ident) => {
        /// # Safety
        /// As for [`Multimem::store`].
        #[inline(always)]
        unsafe fn $name(to: *mut Self, value: Self) {
            #[cfg(target_feature = "sm_90")]
            // SAFETY: the caller promises an accessible multicast address.
            unsafe {
                core::arch::asm!(concat!("multimem.", $text, " [{p}], {v};"), v = in($class) value, p = in(reg64) to, options(nostack));
            }
            #[cfg(not(target_feature = "sm_90"))]
            let _ = (to, value);
        }
    };
}

macro_rules! scalar {
    ($t:ty, $class:ident, $store:literal, $load_add:literal, $reduce_add:literal) => {
        // SAFETY: one instruction each.
        unsafe impl Multimem for $t {
            write_scalar!(store, $store, $class);
            load_scalar!(load_add, $load_add, $class);
            write_scalar!(reduce_add, $reduce_add, $class);
        }
    };
}

macro_rules! scalar_order {
    ($t:ty, $class:ident, $load_min:literal, $load_max:literal, $reduce_min:literal, $reduce_max:literal) => {
        // SAFETY: one instruction each.
        unsafe impl MultimemOrd for $t {
            load_scalar!(load_min, $load_min, $class);
            load_scalar!(load_max, $load_max, $class);
            write_scalar!(reduce_min, $reduce_min, $class);
            write_scalar!(reduce_max, $reduce_max, $class);
        }
    };
}

macro_rules! scalar_bits {
    ($t:ty, $class:ident, $load_and:literal, $load_or:literal, $load_xor:literal) => {
        // SAFETY: one instruction each.
        unsafe impl MultimemBits for $t {
            load_scalar!(load_and, $load_and, $class);
            load_scalar!(load_or, $load_or, $class);
            load_scalar!(load_xor, $load_xor, $class);
        }
    };
}

scalar!(u32, reg32, "st.relaxed.sys.global.u32", "add.u32", "red.relaxed.sys.global.add.u32");
scalar_order!(u32, reg32, "min.u32", "max.u32", "red.relaxed.sys.global.min.u32", "red.relaxed.sys.global.max.u32");
scalar_bits!(u32, reg32, "and.b32", "or.b32", "xor.b32");
scalar!(i32, reg32, "st.relaxed.sys.global.s32", "add.s32", "red.relaxed.sys.global.add.s32");
scalar_order!(i32, reg32, "min.s32", "max.s32", "red.relaxed.sys.global.min.s32", "red.relaxed.sys.global.max.s32");
scalar_bits!(i32, reg32, "and.b32", "or.b32", "xor.b32");
scalar!(u64, reg64, "st.relaxed.sys.global.u64", "add.u64", "red.relaxed.sys.global.add.u64");
scalar_order!(u64, reg64, "min.u64", "max.u64", "red.relaxed.sys.global.min.u64", "red.relaxed.sys.global.max.u64");
scalar_bits!(u64, reg64, "and.b64", "or.b64", "xor.b64");
scalar!(i64, reg64, "st.relaxed.sys.global.s64", "add.u64", "red.relaxed.sys.global.add.u64");
scalar_order!(i64, reg64, "min.s64", "max.s64", "red.relaxed.sys.global.min.s64", "red.relaxed.sys.global.max.s64");
scalar_bits!(i64, reg64, "and.b64", "or.b64", "xor.b64");
scalar!(f32, reg32, "st.relaxed.sys.global.f32", "add.f32", "red.relaxed.sys.global.add.f32");
scalar!(f64, reg64, "st.relaxed.sys.global.f64", "add.f64", "red.relaxed.sys.global.add.f64");

/// Implements a method that loads four registers from a multicast address, by one instruction.
macro_rules! load_vector {
    ($name:ident, $text:literal) => {
        /// # Safety
        /// As for [`Multimem::store`].
        #[inline(always)]
        unsafe fn $name(from: *const Self) -> Self {
            #[cfg(target_feature = "sm_90")]
            {
                let (a, b, c, d): (u32, u32, u32, u32);
                // SAFETY: the caller promises an accessible multicast address.
                unsafe {
                    core::arch::asm!(concat!("multimem.ld_reduce.relaxed.sys.global.", $text, " {{{a}, {b}, {c}, {d}}}, [{p}];"),
                        a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d, p = in(reg64) from, options(nostack));
                }
                Self([a, b, c, d])
            }
            #[cfg(not(target_feature = "sm_90"))]
            {
                let _ = from;
                crate::arch::trap()
            }
        }
    };
}

/// Implements a method that writes four registers to a multicast address, by one instruction.
macro_rules! write_vector {
    ($name:ident, $text:literal) => {
        /// # Safety
        /// As for [`Multimem::store`].
        #[inline(always)]
        unsafe fn $name(to: *mut Self, value: Self) {
            #[cfg(target_feature = "sm_90")]
            // SAFETY: the caller promises an accessible multicast address.
            unsafe {
                let [a, b, c, d] = value.0;
                core::arch::asm!(concat!("multimem.", $text, " [{p}], {{{a}, {b}, {c}, {d}}};"), a = in(reg32) a, b = in(reg32) b,
                    c = in(reg32) c, d = in(reg32) d, p = in(reg64) to, options(nostack));
            }
            #[cfg(not(target_feature = "sm_90"))]
            let _ = (to, value);
        }
    };
}

macro_rules! vector {
    ($t:ident, $store:literal, $load_add:literal, $reduce_add:literal) => {
        // SAFETY: one instruction each.
        unsafe impl Multimem for $t {
            write_vector!(store, $store);
            load_vector!(load_add, $load_add);
            write_vector!(reduce_add, $reduce_add);
        }
    };
}

macro_rules! vector_order {
    ($t:ident, $load_min:literal, $load_max:literal, $reduce_min:literal, $reduce_max:literal) => {
        // SAFETY: one instruction each.
        unsafe impl MultimemOrd for $t {
            load_vector!(load_min, $load_min);
            load_vector!(load_max, $load_max);
            write_vector!(reduce_min, $reduce_min);
            write_vector!(reduce_max, $reduce_max);
        }
    };
}

vector!(F32x4, "st.relaxed.sys.global.v4.f32", "add.v4.f32", "red.relaxed.sys.global.add.v4.f32");
vector!(F16x8, "st.relaxed.sys.global.v4.f16x2", "add.acc::f32.v4.f16x2", "red.relaxed.sys.global.add.v4.f16x2");
vector_order!(
    F16x8,
    "min.v4.f16x2",
    "max.v4.f16x2",
    "red.relaxed.sys.global.min.v4.f16x2",
    "red.relaxed.sys.global.max.v4.f16x2"
);
vector!(Bf16x8, "st.relaxed.sys.global.v4.bf16x2", "add.acc::f32.v4.bf16x2", "red.relaxed.sys.global.add.v4.bf16x2");
vector_order!(
    Bf16x8,
    "min.v4.bf16x2",
    "max.v4.bf16x2",
    "red.relaxed.sys.global.min.v4.bf16x2",
    "red.relaxed.sys.global.max.v4.bf16x2"
);
