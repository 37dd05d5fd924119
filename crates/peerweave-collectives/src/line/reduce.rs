//! Reduction of 16-byte lines, one from each rank, to one line. The kernel chooses the reduction
//! operation when it runs.

use peerweave_device::api::combine::{Combine, Reducible};
use peerweave_device::gpu::{Piece, Vector};
use peerweave_device::prelude::*;
use peerweave_types::{bf16, f16};

/// An unsigned integer type of at most 64 bits, to which a `u64` can be truncated.
pub(crate) trait FromBits {
    #[doc(hidden)]
    fn from_bits(bits: u64) -> Self;
}

macro_rules! from_bits {
    ($($t:ty),*) => {$(
        impl FromBits for $t {
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                bits as Self
            }
        }
    )*};
}

from_bits!(u8, u16, u32, u64);

/// An element type that kernels can reduce. The methods operate on the lanes of a 16-byte line: one
/// lane for each element.
pub(crate) trait Class: Reducible {
    /// The unsigned integer type that has the same size as the element, and can hold its bits.
    type Piece: Piece + Into<u64> + FromBits;
    /// Whether the element type is an integer type.
    const INTEGER: bool;
    /// Converts `value`, a number of ranks, to the element type. Returns the bits of the result,
    /// zero-extended to 64 bits.
    fn number(value: u32) -> u64;
    /// Returns the sum of `a` and `b` in each lane.
    fn plus(a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// Returns the product of `a` and `b` in each lane.
    fn times(a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// Returns the smaller of the values of `a` and `b` in each lane.
    fn least(a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// Returns the larger of the values of `a` and `b` in each lane.
    fn greatest(a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// Returns the quotient `a / b` in each lane. Integer quotients are rounded toward zero.
    fn over(a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
}

macro_rules! class {
    (@lanes $t:ty: $($name:ident $combine:ty),*) => {$(
        #[inline(always)]
        fn $name(a: <$t as Reducible>::Lanes, b: <$t as Reducible>::Lanes) -> <$t as Reducible>::Lanes {
            <$t as Reducible>::zip::<$combine>(a, b)
        }
    )*};
    ($($t:ty as $piece:ty, $integer:literal, |$n:ident| $number:expr;)*) => {$(
        impl Class for $t {
            type Piece = $piece;
            const INTEGER: bool = $integer;

            #[inline(always)]
            fn number($n: u32) -> u64 {
                $number
            }

            class!(@lanes $t: plus Sum, times Prod, least Min, greatest Max, over Over);
        }
    )*};
}

class! {
    i8 as u8, true, |n| u64::from(n);
    u8 as u8, true, |n| u64::from(n);
    i16 as u16, true, |n| u64::from(n);
    u16 as u16, true, |n| u64::from(n);
    i32 as u32, true, |n| u64::from(n);
    u32 as u32, true, |n| u64::from(n);
    i64 as u64, true, |n| u64::from(n);
    u64 as u64, true, |n| u64::from(n);
    f16 as u16, false, |n| u64::from(f16::narrow(n as f32).to_bits());
    bf16 as u16, false, |n| u64::from(bf16::narrow(n as f32).to_bits());
    f32 as u32, false, |n| u64::from((n as f32).to_bits());
    f64 as u64, false, |n| f64::from(n).to_bits();
}

/// The division of two elements. Integer quotients are rounded toward zero.
#[derive(Clone, Copy)]
struct Over;

macro_rules! over {
    ($($t:ty: |$a:ident, $b:ident| $quotient:expr;)*) => {$(
        impl Combine<$t> for Over {
            #[inline(always)]
            fn combine($a: <$t as Reducible>::Wide, $b: <$t as Reducible>::Wide) -> <$t as Reducible>::Wide {
                $quotient
            }
        }
    )*};
}

// The divisor is a number of ranks and never 0. `max` lets the compiler omit the test for zero.
over! {
    i8: |a, b| (i32::from(a) / i32::from(b).max(1)) as i8;
    u8: |a, b| a / b.max(1);
    i16: |a, b| a / b.max(1);
    u16: |a, b| a / b.max(1);
    i32: |a, b| a / b.max(1);
    u32: |a, b| a / b.max(1);
    i64: |a, b| a / b.max(1);
    u64: |a, b| a / b.max(1);
    f16: |a, b| a / b;
    bf16: |a, b| a / b;
    f32: |a, b| a / b;
    f64: |a, b| a / b;
}

/// Returns a 16-byte line whose elements are all equal. `bits` contains the bits of one element,
/// zero-extended.
#[inline(always)]
fn splat<T>(bits: u64) -> Vector {
    let word = match size_of::<T>() {
        1 => bits * 0x0101_0101_0101_0101,
        2 => bits * 0x0001_0001_0001_0001,
        4 => bits * 0x0000_0001_0000_0001,
        _ => bits,
    };
    [word; 2]
}

/// Multiplies each element of a line by a scalar. `scalar` contains the scalar's bits. The line is
/// passed and returned as two 64-bit words. This function is not inlined, because it is rarely
/// called.
#[inline(never)]
fn scaled<T: Class>(low: u64, high: u64, scalar: u64) -> (u64, u64) {
    let [low, high] = T::pack(T::times(T::unpack([low, high]), T::unpack(splat::<T>(scalar))));
    (low, high)
}

/// Converts a line of this rank's input to the line that the rank sends to other ranks. If `op` is
/// `PreMulSum`, multiplies each element by `scalar`. Otherwise, or if `PLAIN` is true, returns the
/// line unchanged.
#[inline(always)]
pub(crate) fn outgoing<T: Class, const PLAIN: bool>(op: u32, scalar: u64, line: Vector) -> Vector {
    if !PLAIN && op == ReduceOp::PreMulSum as u32 {
        let (low, high) = scaled::<T>(line[0], line[1], scalar);
        [low, high]
    } else {
        line
    }
}

/// Combines the first `ranks` lines in order, and returns the result. `state` is either `None` or
/// the reduction of the lines of all earlier ranks. In the latter case, the reduction starts from
/// `state`.
#[inline(always)]
fn fold<T: Class, const W: usize>(
    lines: &[Vector; W],
    ranks: u32,
    state: Option<T::Lanes>,
    combine: impl Fn(T::Lanes, T::Lanes) -> T::Lanes,
) -> T::Lanes {
    let first = T::unpack(lines[0]);
    let mut state = state.map_or(first, |state| combine(state, first));
    for rank in 1..W {
        if (rank as u32) < ranks {
            state = combine(state, T::unpack(lines[rank]));
        }
    }
    state
}

/// Like [`fold`], but `combine` takes two 64-bit words, each one half of a line, instead of lanes.
/// Used for bitwise reductions.
#[inline(always)]
fn fold_bits<T: Class, const W: usize>(
    lines: &[Vector; W],
    ranks: u32,
    state: Option<T::Lanes>,
    combine: impl Fn(u64, u64) -> u64,
) -> T::Lanes {
    let both = |a: Vector, b: Vector| [combine(a[0], b[0]), combine(a[1], b[1])];
    let mut bits = state.map_or(lines[0], |state| both(T::pack(state), lines[0]));
    for rank in 1..W {
        if (rank as u32) < ranks {
            bits = both(bits, lines[rank]);
        }
    }
    T::unpack(bits)
}

/// Reduces the first `ranks` lines in order, and returns the result. `state` is either `None` or
/// the reduction of the lines of all earlier ranks. In the latter case, the reduction starts from
/// `state`. `op` selects the reduction. If `PLAIN` is true, the reduction is always the sum.
#[inline(always)]
pub(crate) fn fold_lines<T: Class, const W: usize, const PLAIN: bool>(
    op: u32,
    ranks: u32,
    lines: &[Vector; W],
    state: Option<T::Lanes>,
) -> T::Lanes {
    const PROD: u32 = ReduceOp::Prod as u32;
    const MIN: u32 = ReduceOp::Min as u32;
    const AND: u32 = ReduceOp::And as u32;
    const OR: u32 = ReduceOp::Or as u32;
    const XOR: u32 = ReduceOp::Xor as u32;
    // Sums are tested first, because a failed test costs less than a jump through a table.
    if PLAIN || is_sum(op) {
        return fold::<T, W>(lines, ranks, state, T::plus);
    }
    match op {
        PROD => fold::<T, W>(lines, ranks, state, T::times),
        MIN => fold::<T, W>(lines, ranks, state, T::least),
        AND if T::INTEGER => fold_bits::<T, W>(lines, ranks, state, |a, b| a & b),
        OR if T::INTEGER => fold_bits::<T, W>(lines, ranks, state, |a, b| a | b),
        XOR if T::INTEGER => fold_bits::<T, W>(lines, ranks, state, |a, b| a ^ b),
        _ => fold::<T, W>(lines, ranks, state, T::greatest),
    }
}

#[inline(always)]
fn is_sum(op: u32) -> bool {
    op == ReduceOp::Sum as u32 || op == ReduceOp::PreMulSum as u32 || op == ReduceOp::Avg as u32
}

/// Converts the reduction of the lines of all ranks, `state`, to a line of the result. If `op` is
/// `Avg`, first divides each element by `ranks`, unless `PLAIN` is true.
#[inline(always)]
pub(crate) fn finish<T: Class, const PLAIN: bool>(op: u32, ranks: u32, state: T::Lanes) -> Vector {
    if !PLAIN && op == ReduceOp::Avg as u32 {
        return T::pack(T::over(state, T::unpack(splat::<T>(T::number(ranks)))));
    }
    T::pack(state)
}

/// Reduces the first `ranks` lines, which are in the order of ranks, and returns the resulting
/// line. If `PLAIN` is true, the reduction is the sum, whatever `op` is.
#[inline(always)]
pub(crate) fn reduce<T: Class, const W: usize, const PLAIN: bool>(op: u32, ranks: u32, lines: &[Vector; W]) -> Vector {
    finish::<T, PLAIN>(op, ranks, fold_lines::<T, W, PLAIN>(op, ranks, lines, None))
}
