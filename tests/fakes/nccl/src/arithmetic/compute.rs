//! The arithmetic of reductions, for every type and operator of NCCL.
//!
//! Module `groups` chooses the contributions. Invariant: contributions are combined in rank order
//! and rounded to the type after each step, so that every rank computes the same bits.

use half::{bf16, f16};

use super::fp8::{E4M3, E5M2};
use super::operator::Op;
use super::types::DType;

/// The operations of an element.
trait Element: Copy {
    const SIZE: usize;
    /// Whether averages divide the sum; otherwise each contribution is multiplied by the inverse of
    /// the number of ranks.
    const DIVIDES: bool;
    fn load(bytes: &[u8]) -> Self;
    fn store(self, bytes: &mut [u8]);
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn divide(self, by: u32) -> Self;
    fn inverse(of: u32) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Element for $type {
            const SIZE: usize = size_of::<Self>();
            const DIVIDES: bool = true;
            fn load(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("the slice has the bytes of one element"))
            }
            fn store(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }
            fn divide(self, by: u32) -> Self {
                (i128::from(self) / i128::from(by)) as Self
            }
            fn inverse(_of: u32) -> Self {
                1
            }
        }
    )*};
}
integers!(i8, u8, i32, u32, i64, u64);

macro_rules! floats {
    ($($type:ty, $wide:ty, $to:expr, $from:expr, $bits:ty;)*) => {$(
        impl Element for $type {
            const SIZE: usize = size_of::<$bits>();
            const DIVIDES: bool = false;
            fn load(bytes: &[u8]) -> Self {
                <$type>::from_bits(<$bits>::from_le_bytes(bytes.try_into().expect("the slice has the bytes of one element")))
            }
            fn store(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_bits().to_le_bytes());
            }
            fn sum(self, other: Self) -> Self {
                $from($to(self) + $to(other))
            }
            fn prod(self, other: Self) -> Self {
                $from($to(self) * $to(other))
            }
            fn max(self, other: Self) -> Self {
                $from(<$wide>::max($to(self), $to(other)))
            }
            fn min(self, other: Self) -> Self {
                $from(<$wide>::min($to(self), $to(other)))
            }
            fn divide(self, by: u32) -> Self {
                $from($to(self) / by as $wide)
            }
            fn inverse(of: u32) -> Self {
                $from(1.0 / of as $wide)
            }
        }
    )*};
}
floats! {
    f16, f32, f16::to_f32, f16::from_f32, u16;
    bf16, f32, bf16::to_f32, bf16::from_f32, u16;
    f32, f32, core::convert::identity, core::convert::identity, u32;
    f64, f64, core::convert::identity, core::convert::identity, u64;
    E4M3, f32, E4M3::to_f32, E4M3::from_f32, u8;
    E5M2, f32, E5M2::to_f32, E5M2::from_f32, u8;
}

fn map<E: Element>(bytes: &mut [u8], change: impl Fn(E) -> E) {
    for place in bytes.chunks_exact_mut(E::SIZE) {
        change(E::load(place)).store(place);
    }
}

fn prepare_as<E: Element>(bytes: &mut [u8], op: Op, dtype: DType, ranks: u32) {
    match op {
        Op::PreMulSum(scalar) => {
            let factor = E::load(&scalar.bytes(dtype)[..E::SIZE]);
            map::<E>(bytes, |value| value.prod(factor));
        }
        Op::Avg if !E::DIVIDES => {
            let factor = E::inverse(ranks);
            map::<E>(bytes, |value| value.prod(factor));
        }
        _ => {}
    }
}

fn combine_as<E: Element>(total: &mut [u8], next: &[u8], op: Op) {
    let combine = match op {
        Op::Sum | Op::Avg | Op::PreMulSum(_) => E::sum,
        Op::Prod => E::prod,
        Op::Max => E::max,
        Op::Min => E::min,
    };
    for (place, value) in total.chunks_exact_mut(E::SIZE).zip(next.chunks_exact(E::SIZE)) {
        combine(E::load(place), E::load(value)).store(place);
    }
}

fn finish_as<E: Element>(total: &mut [u8], op: Op, ranks: u32) {
    if op == Op::Avg && E::DIVIDES {
        map::<E>(total, |value| value.divide(ranks));
    }
}

macro_rules! by_type {
    ($dtype:expr, $function:ident($($arg:expr),*)) => {
        match $dtype {
            DType::I8 => $function::<i8>($($arg),*),
            DType::U8 => $function::<u8>($($arg),*),
            DType::I32 => $function::<i32>($($arg),*),
            DType::U32 => $function::<u32>($($arg),*),
            DType::I64 => $function::<i64>($($arg),*),
            DType::U64 => $function::<u64>($($arg),*),
            DType::F16 => $function::<f16>($($arg),*),
            DType::F32 => $function::<f32>($($arg),*),
            DType::F64 => $function::<f64>($($arg),*),
            DType::Bf16 => $function::<bf16>($($arg),*),
            DType::E4m3 => $function::<E4M3>($($arg),*),
            DType::E5m2 => $function::<E5M2>($($arg),*),
        }
    };
}

/// Transforms a rank's own values before they are sent.
pub(crate) fn prepare(bytes: &mut [u8], op: Op, dtype: DType, ranks: u32) {
    by_type!(dtype, prepare_as(bytes, op, dtype, ranks));
}

/// Combines a rank's values with the total by the operator.
pub(crate) fn combine(total: &mut [u8], next: &[u8], op: Op, dtype: DType) {
    by_type!(dtype, combine_as(total, next, op));
}

/// Completes the result after all values have arrived.
pub(crate) fn finish(total: &mut [u8], op: Op, dtype: DType, ranks: u32) {
    by_type!(dtype, finish_as(total, op, ranks));
}
