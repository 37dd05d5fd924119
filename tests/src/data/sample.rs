//! Elements of every type: values for inputs, bits for comparisons, and reductions of single
//! elements.
//!
//! Inputs of reductions are small whole numbers, and never 0 for floats. Every result is therefore
//! exact in any order of computation.

use peerweave::{Element, F8E4M3, F8E5M2, ReduceOp, Scalar, bf16, f16};

/// Returns a pseudo-random number that depends on all of `parts`.
pub fn hash(parts: &[u64]) -> u64 {
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |state, &part| {
        let mixed = (state ^ part).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (mixed ^ mixed >> 32).wrapping_mul(0xc4ce_b9fe_1a85_ec53) ^ mixed >> 29
    })
}

/// An element whose bits can be chosen and compared.
pub trait Sample: Element + Default {
    /// Returns the bits of the element, zero-extended.
    fn bits(self) -> u64;
    /// Returns the element with these bits.
    fn of_bits(bits: u64) -> Self;
}

macro_rules! sample_number {
    ($($t:ty),*) => {$(
        impl Sample for $t {
            fn bits(self) -> u64 {
                self.to_word()
            }
            fn of_bits(bits: u64) -> Self {
                Self::from_word(bits)
            }
        }
    )*};
}

sample_number!(i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64);

macro_rules! sample_fp8 {
    ($($t:ty),*) => {$(
        impl Sample for $t {
            fn bits(self) -> u64 {
                self.to_bits().into()
            }
            fn of_bits(bits: u64) -> Self {
                Self::from_bits(bits as u8)
            }
        }
    )*};
}

sample_fp8!(F8E4M3, F8E5M2);

/// An element that the oracle can reduce exactly.
pub trait Exact: Sample + Scalar {
    /// Returns a small whole number.
    fn small(value: i64) -> Self;
    /// Returns whether the value is NaN.
    #[allow(clippy::eq_op, reason = "only a NaN differs from itself")]
    fn is_nan(self) -> bool {
        self != self
    }
    /// Reduces one element of each rank, in rank order; `scalars` has one scalar for each rank.
    fn combine(op: ReduceOp, elements: &[Self], scalars: &[Self]) -> Self;
}

macro_rules! exact_integer {
    ($($t:ty),*) => {$(
        impl Exact for $t {
            fn small(value: i64) -> Self {
                if <$t>::MIN == 0 { value.unsigned_abs() as $t } else { value as $t }
            }
            fn combine(op: ReduceOp, elements: &[Self], scalars: &[Self]) -> Self {
                let all = elements.iter().copied();
                let sum = || all.clone().fold(0, <$t>::wrapping_add);
                match op {
                    ReduceOp::Sum => sum(),
                    ReduceOp::Prod => all.fold(1, <$t>::wrapping_mul),
                    ReduceOp::Min => all.min().expect("there is at least one rank"),
                    ReduceOp::Max => all.max().expect("there is at least one rank"),
                    ReduceOp::Avg => sum() / elements.len() as $t,
                    ReduceOp::PreMulSum => all.zip(scalars).fold(0, |sum: $t, (x, &scalar)| sum.wrapping_add(x.wrapping_mul(scalar))),
                    ReduceOp::And => all.fold(!0, |x, y| x & y),
                    ReduceOp::Or => all.fold(0, |x, y| x | y),
                    ReduceOp::Xor => all.fold(0, |x, y| x ^ y),
                    other => panic!("unknown reduction {other}"),
                }
            }
        }
    )*};
}

exact_integer!(i8, u8, i16, u16, i32, u32, i64, u64);

macro_rules! exact_float {
    ($($t:ty, $wide:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl Exact for $t {
            fn small(value: i64) -> Self {
                $narrow(value as $wide)
            }
            fn combine(op: ReduceOp, elements: &[Self], scalars: &[Self]) -> Self {
                let all = elements.iter().copied().map($widen);
                let sum = || all.clone().fold(0.0, |x: $wide, y| x + y);
                let wide: $wide = match op {
                    ReduceOp::Sum => sum(),
                    ReduceOp::Prod => all.fold(1.0, |x, y| x * y),
                    // `min` and `max` ignore NaNs unless all elements are NaN, as reductions do.
                    ReduceOp::Min => all.reduce(<$wide>::min).expect("there is at least one rank"),
                    ReduceOp::Max => all.reduce(<$wide>::max).expect("there is at least one rank"),
                    ReduceOp::Avg => sum() / elements.len() as $wide,
                    ReduceOp::PreMulSum => all.zip(scalars).fold(0.0, |sum, (x, &scalar)| sum + x * $widen(scalar)),
                    other => panic!("{other} is not defined for floats"),
                };
                $narrow(wide)
            }
        }
    )*};
}

exact_float! {
    f16, f32, f16::to_f32, f16::from_f32;
    bf16, f32, bf16::to_f32, bf16::from_f32;
    f32, f32, |x: f32| x, |x: f32| x;
    f64, f64, |x: f64| x, |x: f64| x;
}

/// Returns element `index` of `rank` for a reduction by `op` among `n` ranks, chosen so that the
/// result is exact.
pub fn reducible<T: Exact>(op: ReduceOp, seed: u64, rank: usize, index: usize, n: usize) -> T {
    let random = hash(&[seed, rank as u64, index as u64]);
    match op {
        _ if op.is_bitwise() => T::of_bits(random),
        // Factors of magnitude 1 or 2: products of up to 15 ranks are within the range of f16.
        ReduceOp::Prod => T::small([1, -1, 1, 2, -1, 1, 1, -2][(random % 8) as usize]),
        // Positive multiples of the number of ranks, so that the quotient is a whole number and
        // integers do not wrap.
        ReduceOp::Avg if n <= 5 => T::small((1 + random % 3) as i64 * n as i64),
        ReduceOp::Avg => T::small(n as i64),
        _ => T::small([1, 2, 3, 5, 7, -1, -3, -6][(random % 8) as usize]),
    }
}

/// Returns the factor of a rank in a sum with factors (`PreMulSum`).
pub fn scalar<T: Exact>(seed: u64, rank: usize) -> T {
    T::small(1 + (hash(&[seed, 77, rank as u64]) % 3) as i64)
}

/// Returns element `index` of `rank` for an operation that moves data. The element can have any
/// bits.
pub fn movable<T: Sample>(seed: u64, rank: usize, index: usize) -> T {
    T::of_bits(hash(&[seed, rank as u64, index as u64]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reductions_match_results_that_are_computed_by_hand() {
        assert_eq!(i8::combine(ReduceOp::Sum, &[100, 100], &[]), -56);
        assert_eq!(i32::combine(ReduceOp::Avg, &[-3, -4], &[]), -3);
        assert_eq!(u8::combine(ReduceOp::Xor, &[0b101, 0b110], &[]), 0b011);
        assert_eq!(
            f16::combine(ReduceOp::PreMulSum, &[f16::from_f32(1.5), f16::ONE], &[f16::ONE, f16::from_f32(2.0)]).to_f32(),
            3.5
        );
        assert_eq!(f32::combine(ReduceOp::Min, &[f32::NAN, 2.0], &[]), 2.0);
    }

    #[test]
    fn conversion_of_samples_to_bits_keeps_every_bit() {
        assert_eq!(f32::of_bits(0x7fc0_1234).bits(), 0x7fc0_1234);
        assert_eq!(F8E4M3::of_bits(0xff).bits(), 0xff);
    }
}
