//! The kernels of all_reduce: one for each algorithm, element type and maximum number of ranks.
//!
//! A kernel chooses the reduction operation when it runs. The choice is the same for all threads,
//! so it costs one branch. This takes little time compared with a wait for another GPU. Most
//! algorithms have kernels for up to 2, 4 and 8 ranks, whose loops over ranks are unrolled. Types
//! other than `f16`, `bf16` and `f32` have fewer kernels: `one_shot` for up to 2 and 8 ranks,
//! `two_shot` for up to 8 ranks. For sums of `f16`, `bf16` and `f32` there are additional *plain*
//! kernels, whose operands consist of whole 16-byte lines. Plain kernels have half as many
//! instructions as the other kernels.

use super::{chunked, one_shot, two_shot};
use crate::Call;
#[cfg(not(target_arch = "nvptx64"))]
use crate::{Algorithm, MAX_RANKS};
use peerweave_device::prelude::*;
use peerweave_types::{bf16, f16};

macro_rules! entries {
    ($($name:ident: $algorithm:ident::<$t:ty, $($w:literal),*>;)*) => {$(
        #[doc = concat!("all_reduce of `", stringify!($t), "`, algorithm `", stringify!($algorithm), "`. The kernel's name ends with the maximum number of ranks.")]
        #[kernel(max_threads = 512, unchecked, ptx = crate::PTX)]
        pub fn $name(ctx: &Context, call: Call) -> Result<(), Failed> {
            $algorithm::run::<$t, $($w),*>(ctx, &call)
        }
    )*};
}

entries! {
    all_reduce_one_shot_f16_2: one_shot::<f16, 2, false, false>;
    all_reduce_one_shot_f16_4: one_shot::<f16, 4, false, false>;
    all_reduce_one_shot_f16_8: one_shot::<f16, 4, true, false>;
    all_reduce_one_shot_bf16_2: one_shot::<bf16, 2, false, false>;
    all_reduce_one_shot_bf16_4: one_shot::<bf16, 4, false, false>;
    all_reduce_one_shot_bf16_8: one_shot::<bf16, 4, true, false>;
    all_reduce_one_shot_f32_2: one_shot::<f32, 2, false, false>;
    all_reduce_one_shot_f32_4: one_shot::<f32, 4, false, false>;
    all_reduce_one_shot_f32_8: one_shot::<f32, 4, true, false>;
    all_reduce_one_shot_i8_2: one_shot::<i8, 2, false, false>;
    all_reduce_one_shot_i8_8: one_shot::<i8, 4, true, false>;
    all_reduce_one_shot_u8_2: one_shot::<u8, 2, false, false>;
    all_reduce_one_shot_u8_8: one_shot::<u8, 4, true, false>;
    all_reduce_one_shot_i16_2: one_shot::<i16, 2, false, false>;
    all_reduce_one_shot_i16_8: one_shot::<i16, 4, true, false>;
    all_reduce_one_shot_u16_2: one_shot::<u16, 2, false, false>;
    all_reduce_one_shot_u16_8: one_shot::<u16, 4, true, false>;
    all_reduce_one_shot_i32_2: one_shot::<i32, 2, false, false>;
    all_reduce_one_shot_i32_8: one_shot::<i32, 4, true, false>;
    all_reduce_one_shot_u32_2: one_shot::<u32, 2, false, false>;
    all_reduce_one_shot_u32_8: one_shot::<u32, 4, true, false>;
    all_reduce_one_shot_i64_2: one_shot::<i64, 2, false, false>;
    all_reduce_one_shot_i64_8: one_shot::<i64, 4, true, false>;
    all_reduce_one_shot_u64_2: one_shot::<u64, 2, false, false>;
    all_reduce_one_shot_u64_8: one_shot::<u64, 4, true, false>;
    all_reduce_one_shot_f64_2: one_shot::<f64, 2, false, false>;
    all_reduce_one_shot_f64_8: one_shot::<f64, 4, true, false>;
    all_reduce_plain_one_shot_f16_2: one_shot::<f16, 2, false, true>;
    all_reduce_plain_one_shot_f16_4: one_shot::<f16, 4, false, true>;
    all_reduce_plain_one_shot_f16_8: one_shot::<f16, 4, true, true>;
    all_reduce_plain_one_shot_bf16_2: one_shot::<bf16, 2, false, true>;
    all_reduce_plain_one_shot_bf16_4: one_shot::<bf16, 4, false, true>;
    all_reduce_plain_one_shot_bf16_8: one_shot::<bf16, 4, true, true>;
    all_reduce_plain_one_shot_f32_2: one_shot::<f32, 2, false, true>;
    all_reduce_plain_one_shot_f32_4: one_shot::<f32, 4, false, true>;
    all_reduce_plain_one_shot_f32_8: one_shot::<f32, 4, true, true>;
    all_reduce_two_shot_f16_2: two_shot::<f16, 2, false, false>;
    all_reduce_two_shot_f16_4: two_shot::<f16, 4, false, false>;
    all_reduce_two_shot_f16_8: two_shot::<f16, 4, true, false>;
    all_reduce_two_shot_bf16_2: two_shot::<bf16, 2, false, false>;
    all_reduce_two_shot_bf16_4: two_shot::<bf16, 4, false, false>;
    all_reduce_two_shot_bf16_8: two_shot::<bf16, 4, true, false>;
    all_reduce_two_shot_f32_2: two_shot::<f32, 2, false, false>;
    all_reduce_two_shot_f32_4: two_shot::<f32, 4, false, false>;
    all_reduce_two_shot_f32_8: two_shot::<f32, 4, true, false>;
    all_reduce_two_shot_i8_8: two_shot::<i8, 4, true, false>;
    all_reduce_two_shot_u8_8: two_shot::<u8, 4, true, false>;
    all_reduce_two_shot_i16_8: two_shot::<i16, 4, true, false>;
    all_reduce_two_shot_u16_8: two_shot::<u16, 4, true, false>;
    all_reduce_two_shot_i32_8: two_shot::<i32, 4, true, false>;
    all_reduce_two_shot_u32_8: two_shot::<u32, 4, true, false>;
    all_reduce_two_shot_i64_8: two_shot::<i64, 4, true, false>;
    all_reduce_two_shot_u64_8: two_shot::<u64, 4, true, false>;
    all_reduce_two_shot_f64_8: two_shot::<f64, 4, true, false>;
    all_reduce_plain_two_shot_f16_2: two_shot::<f16, 2, false, true>;
    all_reduce_plain_two_shot_f16_4: two_shot::<f16, 4, false, true>;
    all_reduce_plain_two_shot_f16_8: two_shot::<f16, 4, true, true>;
    all_reduce_plain_two_shot_bf16_2: two_shot::<bf16, 2, false, true>;
    all_reduce_plain_two_shot_bf16_4: two_shot::<bf16, 4, false, true>;
    all_reduce_plain_two_shot_bf16_8: two_shot::<bf16, 4, true, true>;
    all_reduce_plain_two_shot_f32_2: two_shot::<f32, 2, false, true>;
    all_reduce_plain_two_shot_f32_4: two_shot::<f32, 4, false, true>;
    all_reduce_plain_two_shot_f32_8: two_shot::<f32, 4, true, true>;
    all_reduce_chunked_f16_2: chunked::<f16, 2, false>;
    all_reduce_chunked_f16_4: chunked::<f16, 4, false>;
    all_reduce_chunked_f16_8: chunked::<f16, 8, false>;
    all_reduce_chunked_bf16_2: chunked::<bf16, 2, false>;
    all_reduce_chunked_bf16_4: chunked::<bf16, 4, false>;
    all_reduce_chunked_bf16_8: chunked::<bf16, 8, false>;
    all_reduce_chunked_f32_2: chunked::<f32, 2, false>;
    all_reduce_chunked_f32_4: chunked::<f32, 4, false>;
    all_reduce_chunked_f32_8: chunked::<f32, 8, false>;
    all_reduce_chunked_i8_2: chunked::<i8, 2, false>;
    all_reduce_chunked_i8_4: chunked::<i8, 4, false>;
    all_reduce_chunked_i8_8: chunked::<i8, 8, false>;
    all_reduce_chunked_u8_2: chunked::<u8, 2, false>;
    all_reduce_chunked_u8_4: chunked::<u8, 4, false>;
    all_reduce_chunked_u8_8: chunked::<u8, 8, false>;
    all_reduce_chunked_i16_2: chunked::<i16, 2, false>;
    all_reduce_chunked_i16_4: chunked::<i16, 4, false>;
    all_reduce_chunked_i16_8: chunked::<i16, 8, false>;
    all_reduce_chunked_u16_2: chunked::<u16, 2, false>;
    all_reduce_chunked_u16_4: chunked::<u16, 4, false>;
    all_reduce_chunked_u16_8: chunked::<u16, 8, false>;
    all_reduce_chunked_i32_2: chunked::<i32, 2, false>;
    all_reduce_chunked_i32_4: chunked::<i32, 4, false>;
    all_reduce_chunked_i32_8: chunked::<i32, 8, false>;
    all_reduce_chunked_u32_2: chunked::<u32, 2, false>;
    all_reduce_chunked_u32_4: chunked::<u32, 4, false>;
    all_reduce_chunked_u32_8: chunked::<u32, 8, false>;
    all_reduce_chunked_i64_2: chunked::<i64, 2, false>;
    all_reduce_chunked_i64_4: chunked::<i64, 4, false>;
    all_reduce_chunked_i64_8: chunked::<i64, 8, false>;
    all_reduce_chunked_u64_2: chunked::<u64, 2, false>;
    all_reduce_chunked_u64_4: chunked::<u64, 4, false>;
    all_reduce_chunked_u64_8: chunked::<u64, 8, false>;
    all_reduce_chunked_f64_2: chunked::<f64, 2, false>;
    all_reduce_chunked_f64_4: chunked::<f64, 4, false>;
    all_reduce_chunked_f64_8: chunked::<f64, 8, false>;
    all_reduce_plain_chunked_f16_2: chunked::<f16, 2, true>;
    all_reduce_plain_chunked_f16_4: chunked::<f16, 4, true>;
    all_reduce_plain_chunked_f16_8: chunked::<f16, 8, true>;
    all_reduce_plain_chunked_bf16_2: chunked::<bf16, 2, true>;
    all_reduce_plain_chunked_bf16_4: chunked::<bf16, 4, true>;
    all_reduce_plain_chunked_bf16_8: chunked::<bf16, 8, true>;
    all_reduce_plain_chunked_f32_2: chunked::<f32, 2, true>;
    all_reduce_plain_chunked_f32_4: chunked::<f32, 4, true>;
    all_reduce_plain_chunked_f32_8: chunked::<f32, 8, true>;
}

/// Maximum number of threads in a block of the kernels of all_reduce.
pub const MAX_THREADS: u32 = 512;

/// Returns the kernel of all_reduce for an algorithm, an element type and a number of ranks.
/// Returns `None` if the type cannot be reduced, or if `ranks` is not 1 to [`MAX_RANKS`].
///
/// Pass `true` as `is_plain` only if the reduction is the sum, and the addresses and lengths of
/// both operands of this rank are multiples of [`LINE_BYTES`](crate::LINE_BYTES). `is_plain` may
/// differ between ranks.
///
/// ```
/// use peerweave_collectives::{Algorithm, all_reduce};
/// use peerweave_types::DType;
///
/// let kernel = all_reduce::kernel(Algorithm::OneShot, DType::BF16, 3, false).unwrap();
/// assert_eq!(kernel.name(), "all_reduce_one_shot_bf16_4");
/// assert!(all_reduce::kernel(Algorithm::OneShot, DType::F8E4M3, 3, false).is_none());
/// ```
#[cfg(not(target_arch = "nvptx64"))]
pub fn kernel(
    algorithm: Algorithm,
    dtype: peerweave_types::DType,
    ranks: u32,
    is_plain: bool,
) -> Option<&'static peerweave_device::launch::Kernel<(Call,)>> {
    use Algorithm::{Chunked, OneShot, TwoShot};
    use peerweave_types::DType::{BF16, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    if ranks == 0 || ranks as usize > MAX_RANKS {
        return None;
    }
    Some(match (algorithm, dtype, ranks, is_plain) {
        (OneShot, F16, ..=2, true) => &all_reduce_plain_one_shot_f16_2::KERNEL,
        (OneShot, F16, ..=4, true) => &all_reduce_plain_one_shot_f16_4::KERNEL,
        (OneShot, F16, _, true) => &all_reduce_plain_one_shot_f16_8::KERNEL,
        (OneShot, BF16, ..=2, true) => &all_reduce_plain_one_shot_bf16_2::KERNEL,
        (OneShot, BF16, ..=4, true) => &all_reduce_plain_one_shot_bf16_4::KERNEL,
        (OneShot, BF16, _, true) => &all_reduce_plain_one_shot_bf16_8::KERNEL,
        (OneShot, F32, ..=2, true) => &all_reduce_plain_one_shot_f32_2::KERNEL,
        (OneShot, F32, ..=4, true) => &all_reduce_plain_one_shot_f32_4::KERNEL,
        (OneShot, F32, _, true) => &all_reduce_plain_one_shot_f32_8::KERNEL,
        (OneShot, F16, ..=2, _) => &all_reduce_one_shot_f16_2::KERNEL,
        (OneShot, F16, ..=4, _) => &all_reduce_one_shot_f16_4::KERNEL,
        (OneShot, F16, _, _) => &all_reduce_one_shot_f16_8::KERNEL,
        (OneShot, BF16, ..=2, _) => &all_reduce_one_shot_bf16_2::KERNEL,
        (OneShot, BF16, ..=4, _) => &all_reduce_one_shot_bf16_4::KERNEL,
        (OneShot, BF16, _, _) => &all_reduce_one_shot_bf16_8::KERNEL,
        (OneShot, F32, ..=2, _) => &all_reduce_one_shot_f32_2::KERNEL,
        (OneShot, F32, ..=4, _) => &all_reduce_one_shot_f32_4::KERNEL,
        (OneShot, F32, _, _) => &all_reduce_one_shot_f32_8::KERNEL,
        (OneShot, I8, ..=2, _) => &all_reduce_one_shot_i8_2::KERNEL,
        (OneShot, I8, _, _) => &all_reduce_one_shot_i8_8::KERNEL,
        (OneShot, U8, ..=2, _) => &all_reduce_one_shot_u8_2::KERNEL,
        (OneShot, U8, _, _) => &all_reduce_one_shot_u8_8::KERNEL,
        (OneShot, I16, ..=2, _) => &all_reduce_one_shot_i16_2::KERNEL,
        (OneShot, I16, _, _) => &all_reduce_one_shot_i16_8::KERNEL,
        (OneShot, U16, ..=2, _) => &all_reduce_one_shot_u16_2::KERNEL,
        (OneShot, U16, _, _) => &all_reduce_one_shot_u16_8::KERNEL,
        (OneShot, I32, ..=2, _) => &all_reduce_one_shot_i32_2::KERNEL,
        (OneShot, I32, _, _) => &all_reduce_one_shot_i32_8::KERNEL,
        (OneShot, U32, ..=2, _) => &all_reduce_one_shot_u32_2::KERNEL,
        (OneShot, U32, _, _) => &all_reduce_one_shot_u32_8::KERNEL,
        (OneShot, I64, ..=2, _) => &all_reduce_one_shot_i64_2::KERNEL,
        (OneShot, I64, _, _) => &all_reduce_one_shot_i64_8::KERNEL,
        (OneShot, U64, ..=2, _) => &all_reduce_one_shot_u64_2::KERNEL,
        (OneShot, U64, _, _) => &all_reduce_one_shot_u64_8::KERNEL,
        (OneShot, F64, ..=2, _) => &all_reduce_one_shot_f64_2::KERNEL,
        (OneShot, F64, _, _) => &all_reduce_one_shot_f64_8::KERNEL,
        (TwoShot, F16, ..=2, true) => &all_reduce_plain_two_shot_f16_2::KERNEL,
        (TwoShot, F16, ..=4, true) => &all_reduce_plain_two_shot_f16_4::KERNEL,
        (TwoShot, F16, _, true) => &all_reduce_plain_two_shot_f16_8::KERNEL,
        (TwoShot, BF16, ..=2, true) => &all_reduce_plain_two_shot_bf16_2::KERNEL,
        (TwoShot, BF16, ..=4, true) => &all_reduce_plain_two_shot_bf16_4::KERNEL,
        (TwoShot, BF16, _, true) => &all_reduce_plain_two_shot_bf16_8::KERNEL,
        (TwoShot, F32, ..=2, true) => &all_reduce_plain_two_shot_f32_2::KERNEL,
        (TwoShot, F32, ..=4, true) => &all_reduce_plain_two_shot_f32_4::KERNEL,
        (TwoShot, F32, _, true) => &all_reduce_plain_two_shot_f32_8::KERNEL,
        (TwoShot, F16, ..=2, _) => &all_reduce_two_shot_f16_2::KERNEL,
        (TwoShot, F16, ..=4, _) => &all_reduce_two_shot_f16_4::KERNEL,
        (TwoShot, F16, _, _) => &all_reduce_two_shot_f16_8::KERNEL,
        (TwoShot, BF16, ..=2, _) => &all_reduce_two_shot_bf16_2::KERNEL,
        (TwoShot, BF16, ..=4, _) => &all_reduce_two_shot_bf16_4::KERNEL,
        (TwoShot, BF16, _, _) => &all_reduce_two_shot_bf16_8::KERNEL,
        (TwoShot, F32, ..=2, _) => &all_reduce_two_shot_f32_2::KERNEL,
        (TwoShot, F32, ..=4, _) => &all_reduce_two_shot_f32_4::KERNEL,
        (TwoShot, F32, _, _) => &all_reduce_two_shot_f32_8::KERNEL,
        (TwoShot, I8, _, _) => &all_reduce_two_shot_i8_8::KERNEL,
        (TwoShot, U8, _, _) => &all_reduce_two_shot_u8_8::KERNEL,
        (TwoShot, I16, _, _) => &all_reduce_two_shot_i16_8::KERNEL,
        (TwoShot, U16, _, _) => &all_reduce_two_shot_u16_8::KERNEL,
        (TwoShot, I32, _, _) => &all_reduce_two_shot_i32_8::KERNEL,
        (TwoShot, U32, _, _) => &all_reduce_two_shot_u32_8::KERNEL,
        (TwoShot, I64, _, _) => &all_reduce_two_shot_i64_8::KERNEL,
        (TwoShot, U64, _, _) => &all_reduce_two_shot_u64_8::KERNEL,
        (TwoShot, F64, _, _) => &all_reduce_two_shot_f64_8::KERNEL,
        (Chunked, F16, ..=2, true) => &all_reduce_plain_chunked_f16_2::KERNEL,
        (Chunked, F16, ..=4, true) => &all_reduce_plain_chunked_f16_4::KERNEL,
        (Chunked, F16, _, true) => &all_reduce_plain_chunked_f16_8::KERNEL,
        (Chunked, BF16, ..=2, true) => &all_reduce_plain_chunked_bf16_2::KERNEL,
        (Chunked, BF16, ..=4, true) => &all_reduce_plain_chunked_bf16_4::KERNEL,
        (Chunked, BF16, _, true) => &all_reduce_plain_chunked_bf16_8::KERNEL,
        (Chunked, F32, ..=2, true) => &all_reduce_plain_chunked_f32_2::KERNEL,
        (Chunked, F32, ..=4, true) => &all_reduce_plain_chunked_f32_4::KERNEL,
        (Chunked, F32, _, true) => &all_reduce_plain_chunked_f32_8::KERNEL,
        (Chunked, F16, ..=2, _) => &all_reduce_chunked_f16_2::KERNEL,
        (Chunked, F16, ..=4, _) => &all_reduce_chunked_f16_4::KERNEL,
        (Chunked, F16, _, _) => &all_reduce_chunked_f16_8::KERNEL,
        (Chunked, BF16, ..=2, _) => &all_reduce_chunked_bf16_2::KERNEL,
        (Chunked, BF16, ..=4, _) => &all_reduce_chunked_bf16_4::KERNEL,
        (Chunked, BF16, _, _) => &all_reduce_chunked_bf16_8::KERNEL,
        (Chunked, F32, ..=2, _) => &all_reduce_chunked_f32_2::KERNEL,
        (Chunked, F32, ..=4, _) => &all_reduce_chunked_f32_4::KERNEL,
        (Chunked, F32, _, _) => &all_reduce_chunked_f32_8::KERNEL,
        (Chunked, I8, ..=2, _) => &all_reduce_chunked_i8_2::KERNEL,
        (Chunked, I8, ..=4, _) => &all_reduce_chunked_i8_4::KERNEL,
        (Chunked, I8, _, _) => &all_reduce_chunked_i8_8::KERNEL,
        (Chunked, U8, ..=2, _) => &all_reduce_chunked_u8_2::KERNEL,
        (Chunked, U8, ..=4, _) => &all_reduce_chunked_u8_4::KERNEL,
        (Chunked, U8, _, _) => &all_reduce_chunked_u8_8::KERNEL,
        (Chunked, I16, ..=2, _) => &all_reduce_chunked_i16_2::KERNEL,
        (Chunked, I16, ..=4, _) => &all_reduce_chunked_i16_4::KERNEL,
        (Chunked, I16, _, _) => &all_reduce_chunked_i16_8::KERNEL,
        (Chunked, U16, ..=2, _) => &all_reduce_chunked_u16_2::KERNEL,
        (Chunked, U16, ..=4, _) => &all_reduce_chunked_u16_4::KERNEL,
        (Chunked, U16, _, _) => &all_reduce_chunked_u16_8::KERNEL,
        (Chunked, I32, ..=2, _) => &all_reduce_chunked_i32_2::KERNEL,
        (Chunked, I32, ..=4, _) => &all_reduce_chunked_i32_4::KERNEL,
        (Chunked, I32, _, _) => &all_reduce_chunked_i32_8::KERNEL,
        (Chunked, U32, ..=2, _) => &all_reduce_chunked_u32_2::KERNEL,
        (Chunked, U32, ..=4, _) => &all_reduce_chunked_u32_4::KERNEL,
        (Chunked, U32, _, _) => &all_reduce_chunked_u32_8::KERNEL,
        (Chunked, I64, ..=2, _) => &all_reduce_chunked_i64_2::KERNEL,
        (Chunked, I64, ..=4, _) => &all_reduce_chunked_i64_4::KERNEL,
        (Chunked, I64, _, _) => &all_reduce_chunked_i64_8::KERNEL,
        (Chunked, U64, ..=2, _) => &all_reduce_chunked_u64_2::KERNEL,
        (Chunked, U64, ..=4, _) => &all_reduce_chunked_u64_4::KERNEL,
        (Chunked, U64, _, _) => &all_reduce_chunked_u64_8::KERNEL,
        (Chunked, F64, ..=2, _) => &all_reduce_chunked_f64_2::KERNEL,
        (Chunked, F64, ..=4, _) => &all_reduce_chunked_f64_4::KERNEL,
        (Chunked, F64, _, _) => &all_reduce_chunked_f64_8::KERNEL,
        _ => return None,
    })
}
