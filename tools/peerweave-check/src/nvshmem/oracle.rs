//! Computes expected results on the host: the inputs of the PEs, and the reductions of these
//! inputs.
//!
//! Inputs are small numbers, so that every sum and product is exact in every type, or wraps in the
//! same way on the host and on the GPU.

use half::{bf16, f16};
use peerweave_types::{Element, F8E4M3, F8E5M2, Number, ReduceOp};

/// An element type for which this module computes inputs of operations that only move data.
pub(crate) trait Sample: Element + Default {
    /// Returns an element that is computed from `bits`. Different bits give different elements if
    /// the type has enough values.
    fn of_bits(bits: u8) -> Self;

    /// Returns the input of `pe` at `index`.
    fn sample(pe: u32, index: usize) -> Self {
        Self::of_bits((pe as usize * 37 + index * 11 + 5) as u8 & 0x3f)
    }
}

/// An element type for which this module computes inputs and results of reductions.
pub(crate) trait Reduce: Number + Sample {
    /// Converts a small number to an element of this type.
    fn small(number: u8) -> Self;
    /// Returns the reduction of two elements by `op`.
    fn combine(op: ReduceOp, one: Self, other: Self) -> Self;

    /// Returns element `index` of the input of PE `pe` for the reduction `op`.
    fn operand(op: ReduceOp, pe: u32, index: usize) -> Self {
        match op {
            ReduceOp::Prod => Self::small(1 + ((pe as usize + index) % 2) as u8),
            _ => Self::small(((pe as usize * 3 + index * 5) % 7) as u8),
        }
    }
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Sample for $t {
            fn of_bits(bits: u8) -> Self {
                bits as $t
            }
        }
        impl Reduce for $t {
            fn small(number: u8) -> Self {
                number as $t
            }
            fn combine(op: ReduceOp, one: Self, other: Self) -> Self {
                match op {
                    ReduceOp::Sum => one.wrapping_add(other),
                    ReduceOp::Prod => one.wrapping_mul(other),
                    ReduceOp::Min => one.min(other),
                    ReduceOp::Max => one.max(other),
                    ReduceOp::And => one & other,
                    ReduceOp::Or => one | other,
                    _ => one ^ other,
                }
            }
        }
    )*};
}
integers!(i8, u8, i32, u32, i64, u64);

macro_rules! floats {
    ($($t:ty, $from:expr);*) => {$(
        impl Sample for $t {
            fn of_bits(bits: u8) -> Self {
                $from(f32::from(bits))
            }
        }
        impl Reduce for $t {
            fn small(number: u8) -> Self {
                $from(f32::from(number))
            }
            fn combine(op: ReduceOp, one: Self, other: Self) -> Self {
                match op {
                    ReduceOp::Sum => one + other,
                    ReduceOp::Prod => one * other,
                    ReduceOp::Min => if other < one { other } else { one },
                    _ => if other > one { other } else { one },
                }
            }
        }
    )*};
}
floats!(f16, f16::from_f32; bf16, bf16::from_f32; f32, |number| number; f64, f64::from);

impl Sample for F8E4M3 {
    fn of_bits(bits: u8) -> Self {
        Self::from_bits(bits)
    }
}

impl Sample for F8E5M2 {
    fn of_bits(bits: u8) -> Self {
        Self::from_bits(bits)
    }
}
