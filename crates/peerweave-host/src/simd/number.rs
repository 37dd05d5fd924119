//! The arithmetic of one lane, as scalar formulas without branches, which the compiler vectorises.
//!
//! Nothing here depends on the instruction set. Invariant: equal operands give results with equal
//! bits on every processor. So `least` and `greatest` define the cases that IEEE 754 leaves open,
//! and [`Number::canonical`] maps every NaN to the same one.

/// A type that reductions are computed in.
pub(super) trait Number: Copy {
    /// The precomputed values to divide by a fixed count.
    type Divisor: Copy;

    /// Returns the sum; integers wrap.
    fn plus(self, other: Self) -> Self;
    /// Returns the product; integers wrap.
    fn times(self, other: Self) -> Self;
    /// Returns the smaller value; if one is a NaN, the other; of two zeros the negative one.
    fn least(self, other: Self) -> Self;
    /// Returns the larger value; if one is a NaN, the other; of two zeros the positive one.
    fn greatest(self, other: Self) -> Self;
    /// Prepares to divide by `count`, which is at least 1.
    fn divisor(count: usize) -> Self::Divisor;
    /// Returns the quotient; integers round toward zero.
    fn over(self, divisor: Self::Divisor) -> Self;
    /// Returns the same value; for every NaN the canonical one.
    fn canonical(self) -> Self;
}

macro_rules! float {
    ($($t:ty, $bits:ty, $signed:ty, $nan:literal);*) => {$(
        impl Number for $t {
            type Divisor = Self;

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn least(self, other: Self) -> Self {
                // Equal values have equal bits, except for the zeros: -0 is the bitwise or of both.
                let equal = Self::from_bits(self.to_bits() | other.to_bits());
                let ordered = if other < self { other } else { self };
                let number = if other == self { equal } else { ordered };
                if self.is_nan() { other } else { number }
            }

            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                let equal = Self::from_bits(self.to_bits() & other.to_bits());
                let ordered = if other > self { other } else { self };
                let number = if other == self { equal } else { ordered };
                if self.is_nan() { other } else { number }
            }

            #[inline(always)]
            fn divisor(count: usize) -> Self {
                count as Self
            }

            #[inline(always)]
            fn over(self, divisor: Self) -> Self {
                self / divisor
            }

            #[inline(always)]
            fn canonical(self) -> Self {
                // All ones if this is a NaN, else zero.
                let magnitude = (self.to_bits() & (<$bits>::MAX >> 1)) as $signed;
                let nan = ((Self::INFINITY.to_bits() as $signed - magnitude) >> (<$bits>::BITS - 1)) as $bits;
                Self::from_bits(self.to_bits() & !nan | $nan & nan)
            }
        }
    )*};
}

// Positive, quiet, no payload. Spelled out, because `NAN` is not promised to be any particular one.
float!(f32, u32, i32, 0x7fc0_0000; f64, u64, i64, 0x7ff8_0000_0000_0000);

/// Division by a count known beforehand, as a multiplication: Granlund and Montgomery, "Division by
/// Invariant Integers using Multiplication" (PLDI 1994), figure 4.1. Exact for every dividend;
/// hardware divides at a tenth of the speed and never in vectors.
#[derive(Clone, Copy)]
pub(super) struct Reciprocal<T> {
    multiplier: T,
    first_shift: u32,
    second_shift: u32,
}

macro_rules! reciprocal {
    ($($t:ty, $wide:ty);*) => {$(
        impl Reciprocal<$t> {
            fn new(count: $t) -> Self {
                // The least `log` with 2^log >= count.
                let log = count.checked_next_power_of_two().map_or(<$t>::BITS, <$t>::trailing_zeros);
                let multiplier = (((1 as $wide) << <$t>::BITS) * (((1 as $wide) << log) - count as $wide) / count as $wide + 1) as $t;
                Self { multiplier, first_shift: log.min(1), second_shift: log.saturating_sub(1) }
            }

            #[inline(always)]
            fn quotient(self, dividend: $t) -> $t {
                let high = ((dividend as $wide * self.multiplier as $wide) >> <$t>::BITS) as $t;
                (high + ((dividend - high) >> self.first_shift)) >> self.second_shift
            }
        }
    )*};
}

reciprocal!(u32, u64; u64, u128);

macro_rules! integer {
    ($($t:ty, $magnitude:ty, $dividend:ident);* $(;)?) => {$(
        impl Number for $t {
            type Divisor = Reciprocal<$dividend>;

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn least(self, other: Self) -> Self {
                if other < self { other } else { self }
            }

            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                if other > self { other } else { self }
            }

            fn divisor(count: usize) -> Self::Divisor {
                // That many inputs do not fit in memory; if they did, the quotient would still be
                // right except for the largest dividend.
                Reciprocal::<$dividend>::new($dividend::try_from(count).unwrap_or($dividend::MAX))
            }

            #[inline(always)]
            fn over(self, divisor: Self::Divisor) -> Self {
                // All ones if negative; so that no branch keeps this from being vectorised.
                let sign = if Self::MIN == 0 { 0 } else { self >> (Self::BITS - 1) };
                let magnitude = (self ^ sign).wrapping_sub(sign) as $magnitude;
                let quotient = divisor.quotient($dividend::from(magnitude)) as Self;
                (quotient ^ sign).wrapping_sub(sign)
            }

            #[inline(always)]
            fn canonical(self) -> Self {
                self
            }
        }
    )*};
}

integer!(i8, u8, u32; u8, u8, u32; i16, u16, u32; u16, u16, u32; i32, u32, u32; u32, u32, u32; i64, u64, u64; u64, u64, u64);
