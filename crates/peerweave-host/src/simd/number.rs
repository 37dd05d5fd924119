//! The arithmetic of one lane, as scalar formulas without branches. The compiler vectorises these
//! formulas.
//!
//! This module does not depend on the instruction set. Invariant: equal operands have results with
//! equal bits on every processor. So `least` and `greatest` define the cases that IEEE 754 leaves
//! open, and [`Number::canonical`] maps every NaN to the same NaN.

/// A type in which reductions are computed.
pub(super) trait Number: Copy {
    /// Precomputed values for the division by a fixed count.
    type Divisor: Copy;

    /// Returns the sum. Integers wrap.
    fn plus(self, other: Self) -> Self;
    /// Returns the product. Integers wrap.
    fn times(self, other: Self) -> Self;
    /// Returns the smaller value. If one value is a NaN, returns the other value. -0 is less than
    /// +0.
    fn least(self, other: Self) -> Self;
    /// Returns the larger value. If one value is a NaN, returns the other value. -0 is less than
    /// +0.
    fn greatest(self, other: Self) -> Self;
    /// Returns the precomputed values for the division by `count`, which is at least 1.
    fn divisor(count: usize) -> Self::Divisor;
    /// Divides this value by a count. `divisor` is the result of [`Number::divisor`] for this
    /// count. The quotient of integers is rounded toward zero.
    fn over(self, divisor: Self::Divisor) -> Self;
    /// Returns this value. If the value is a NaN, returns the canonical NaN instead.
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
                // Equal values have equal bits, except for +0 and -0. The bitwise or of +0 and -0
                // is -0.
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
                // `nan` has all bits set if this is a NaN, and is zero otherwise.
                let magnitude = (self.to_bits() & (<$bits>::MAX >> 1)) as $signed;
                let nan = ((Self::INFINITY.to_bits() as $signed - magnitude) >> (<$bits>::BITS - 1)) as $bits;
                Self::from_bits(self.to_bits() & !nan | $nan & nan)
            }
        }
    )*};
}

// The canonical NaN is positive and quiet, without payload. Its bits are written out, because Rust
// does not specify the bits of `NAN`.
float!(f32, u32, i32, 0x7fc0_0000; f64, u64, i64, 0x7ff8_0000_0000_0000);

/// Precomputed values for divisions by the same count. With these values, a multiplication replaces
/// the division. The result is exact for every dividend. See Granlund and Montgomery, "Division by
/// Invariant Integers using Multiplication" (PLDI 1994), figure 4.1. The division instruction of
/// the processor is ten times slower and is not available in vectors.
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
                // `log` is the least number with 2^log >= count.
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
                // Larger counts than the type allows do not occur, because so many inputs do not
                // fit in memory. If they did, the quotient would still be right except for the
                // largest dividend.
                Reciprocal::<$dividend>::new($dividend::try_from(count).unwrap_or($dividend::MAX))
            }

            #[inline(always)]
            fn over(self, divisor: Self::Divisor) -> Self {
                // `sign` has all bits set if the value is negative. A branch would prevent
                // vectorisation.
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
