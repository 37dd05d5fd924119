//! Stubs of accesses to a multicast address. The host has no multicast memory, and each stub
//! panics. The stubs let kernels with a multicast path compile for the host.

pub use crate::arch::ops::multimem::{Bf16x8, F16x8, F32x4, Multimem, MultimemBits, MultimemOrd};

/// Whether multicast accesses are available: always false on the host. A kernel must check this
/// constant before it accesses a multicast address.
pub const AVAILABLE: bool = false;

fn refuse() -> ! {
    panic!("a kernel on the host accessed a multicast address, which only GPUs can access")
}

macro_rules! refused {
    ($($t:ty),*) => {$(
        // SAFETY: nothing is accessed: each call panics.
        unsafe impl Multimem for $t {
            unsafe fn store(_: *mut Self, _: Self) {
                refuse()
            }
            unsafe fn load_add(_: *const Self) -> Self {
                refuse()
            }
            unsafe fn reduce_add(_: *mut Self, _: Self) {
                refuse()
            }
        }
    )*};
}

macro_rules! refused_order {
    ($($t:ty),*) => {$(
        // SAFETY: nothing is accessed: each call panics.
        unsafe impl MultimemOrd for $t {
            unsafe fn load_min(_: *const Self) -> Self {
                refuse()
            }
            unsafe fn load_max(_: *const Self) -> Self {
                refuse()
            }
            unsafe fn reduce_min(_: *mut Self, _: Self) {
                refuse()
            }
            unsafe fn reduce_max(_: *mut Self, _: Self) {
                refuse()
            }
        }
    )*};
}

macro_rules! refused_bits {
    ($($t:ty),*) => {$(
        // SAFETY: nothing is accessed: each call panics.
        unsafe impl MultimemBits for $t {
            unsafe fn load_and(_: *const Self) -> Self {
                refuse()
            }
            unsafe fn load_or(_: *const Self) -> Self {
                refuse()
            }
            unsafe fn load_xor(_: *const Self) -> Self {
                refuse()
            }
        }
    )*};
}

refused!(u32, i32, u64, i64, f32, f64, F32x4, F16x8, Bf16x8);
refused_order!(u32, i32, u64, i64, F16x8, Bf16x8);
refused_bits!(u32, i32, u64, i64);
