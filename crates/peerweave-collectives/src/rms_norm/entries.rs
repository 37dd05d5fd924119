//! The kernels of RMSNorm: one for each algorithm, element type and maximum number of ranks.

#[cfg(not(target_arch = "nvptx64"))]
use super::Algorithm;
use super::{Norm, one_shot, plain, two_shot};
use crate::Call;
use peerweave_device::prelude::*;
use peerweave_types::{bf16, f16};

macro_rules! entries {
    ($($name:ident: $algorithm:ident::<$t:ty, $w:literal, $more:literal>;)*) => {$(
        #[doc = concat!("Carries out an all_reduce, adds the residual, and computes RMSNorm, for `", stringify!($t), "`, algorithm `", stringify!($algorithm), "`. The kernel's name ends with the maximum number of ranks.")]
        #[kernel(max_threads = 512, unchecked, ptx = crate::PTX)]
        pub fn $name(ctx: &Context, call: Call, norm: Norm) -> Result<(), Failed> {
            $algorithm::run::<$t, $w, $more>(ctx, &call, &norm)
        }
    )*};
}

macro_rules! plain_entries {
    ($($name:ident: $t:ty;)*) => {$(
        #[doc = concat!("Adds the residual and computes RMSNorm, for `", stringify!($t), "`, without communication.")]
        #[kernel(max_threads = 512, unchecked, ptx = crate::PTX)]
        pub fn $name(_ctx: &Context, call: Call, norm: Norm) -> Result<(), Failed> {
            plain::run::<$t>(&call, &norm)
        }
    )*};
}

entries! {
    rms_norm_one_shot_f16_2: one_shot::<f16, 2, false>;
    rms_norm_one_shot_f16_4: one_shot::<f16, 4, false>;
    rms_norm_one_shot_f16_8: one_shot::<f16, 4, true>;
    rms_norm_one_shot_bf16_2: one_shot::<bf16, 2, false>;
    rms_norm_one_shot_bf16_4: one_shot::<bf16, 4, false>;
    rms_norm_one_shot_bf16_8: one_shot::<bf16, 4, true>;
    rms_norm_one_shot_f32_2: one_shot::<f32, 2, false>;
    rms_norm_one_shot_f32_4: one_shot::<f32, 4, false>;
    rms_norm_one_shot_f32_8: one_shot::<f32, 4, true>;
    rms_norm_two_shot_f16_2: two_shot::<f16, 2, false>;
    rms_norm_two_shot_f16_4: two_shot::<f16, 4, false>;
    rms_norm_two_shot_f16_8: two_shot::<f16, 4, true>;
    rms_norm_two_shot_bf16_2: two_shot::<bf16, 2, false>;
    rms_norm_two_shot_bf16_4: two_shot::<bf16, 4, false>;
    rms_norm_two_shot_bf16_8: two_shot::<bf16, 4, true>;
    rms_norm_two_shot_f32_2: two_shot::<f32, 2, false>;
    rms_norm_two_shot_f32_4: two_shot::<f32, 4, false>;
    rms_norm_two_shot_f32_8: two_shot::<f32, 4, true>;
}

plain_entries! {
    rms_norm_plain_f16_1: f16;
    rms_norm_plain_bf16_1: bf16;
    rms_norm_plain_f32_1: f32;
}

/// Returns the RMSNorm kernel for an algorithm, an element type and a number of ranks. Returns
/// `None` if the type is not `f16`, `bf16` or `f32`, or if `ranks` is not 1 to 8.
#[cfg(not(target_arch = "nvptx64"))]
pub fn kernel(
    algorithm: Algorithm,
    dtype: peerweave_types::DType,
    ranks: u32,
) -> Option<&'static peerweave_device::launch::Kernel<(Call, Norm)>> {
    use Algorithm::{None as Plain, OneShot, TwoShot};
    use peerweave_types::DType::{BF16, F16, F32};
    if ranks == 0 || ranks as usize > crate::MAX_RANKS {
        return None;
    }
    Some(match (algorithm, dtype, ranks) {
        (Plain, F16, _) => &rms_norm_plain_f16_1::KERNEL,
        (Plain, BF16, _) => &rms_norm_plain_bf16_1::KERNEL,
        (Plain, F32, _) => &rms_norm_plain_f32_1::KERNEL,
        (OneShot, F16, ..=2) => &rms_norm_one_shot_f16_2::KERNEL,
        (OneShot, F16, ..=4) => &rms_norm_one_shot_f16_4::KERNEL,
        (OneShot, F16, _) => &rms_norm_one_shot_f16_8::KERNEL,
        (OneShot, BF16, ..=2) => &rms_norm_one_shot_bf16_2::KERNEL,
        (OneShot, BF16, ..=4) => &rms_norm_one_shot_bf16_4::KERNEL,
        (OneShot, BF16, _) => &rms_norm_one_shot_bf16_8::KERNEL,
        (OneShot, F32, ..=2) => &rms_norm_one_shot_f32_2::KERNEL,
        (OneShot, F32, ..=4) => &rms_norm_one_shot_f32_4::KERNEL,
        (OneShot, F32, _) => &rms_norm_one_shot_f32_8::KERNEL,
        (TwoShot, F16, ..=2) => &rms_norm_two_shot_f16_2::KERNEL,
        (TwoShot, F16, ..=4) => &rms_norm_two_shot_f16_4::KERNEL,
        (TwoShot, F16, _) => &rms_norm_two_shot_f16_8::KERNEL,
        (TwoShot, BF16, ..=2) => &rms_norm_two_shot_bf16_2::KERNEL,
        (TwoShot, BF16, ..=4) => &rms_norm_two_shot_bf16_4::KERNEL,
        (TwoShot, BF16, _) => &rms_norm_two_shot_bf16_8::KERNEL,
        (TwoShot, F32, ..=2) => &rms_norm_two_shot_f32_2::KERNEL,
        (TwoShot, F32, ..=4) => &rms_norm_two_shot_f32_4::KERNEL,
        (TwoShot, F32, _) => &rms_norm_two_shot_f32_8::KERNEL,
        _ => return None,
    })
}
