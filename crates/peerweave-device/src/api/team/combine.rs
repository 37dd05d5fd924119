//! The operators of reductions: sum, product, minimum, maximum, and bitwise operators.
//!
//! 16-bit floats are combined in `f32`, and the result is rounded once. Integers wrap. The minimum
//! and the maximum of floats ignore NaNs, unless all operands are NaN.

use crate::gpu::{self, Vector};
use peerweave_types::{Element, bf16, f16};

/// An operator that reduces elements of type `T`: [`Sum`], [`Prod`], [`Min`], [`Max`], and for
/// integers also [`And`], [`Or`], [`Xor`].
pub trait Combine<T: Reducible>: Copy + 'static {
    /// Combines two intermediate results.
    fn combine(a: T::Wide, b: T::Wide) -> T::Wide;
}

/// An element type that kernels can reduce.
pub trait Reducible: Element + peerweave_types::Plain {
    /// The type of intermediate results: `f32` for 16-bit floats, and the type itself for all other
    /// types.
    type Wide: Copy;
    /// The type that holds all elements of one 16-byte vector, each converted to [`Self::Wide`].
    #[doc(hidden)]
    type Lanes: Copy;
    #[doc(hidden)]
    fn widen(self) -> Self::Wide;
    #[doc(hidden)]
    fn narrow(wide: Self::Wide) -> Self;
    #[doc(hidden)]
    fn unpack(vector: Vector) -> Self::Lanes;
    #[doc(hidden)]
    fn pack(lanes: Self::Lanes) -> Vector;
    #[doc(hidden)]
    fn zip<C: Combine<Self>>(a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
}

macro_rules! operation {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
    };
}

operation!(
    /// The operator that adds.
    Sum
);
operation!(
    /// The operator that multiplies.
    Prod
);
operation!(
    /// The operator that returns the minimum.
    Min
);
operation!(
    /// The operator that returns the maximum.
    Max
);
operation!(
    /// The operator that returns the bitwise AND.
    And
);
operation!(
    /// The operator that returns the bitwise OR.
    Or
);
operation!(
    /// The operator that returns the bitwise exclusive OR.
    Xor
);

macro_rules! combine {
    ($operation:ident for $($t:ty),*: |$a:ident, $b:ident| $result:expr) => {$(
        impl Combine<$t> for $operation {
            #[inline(always)]
            fn combine($a: <$t as Reducible>::Wide, $b: <$t as Reducible>::Wide) -> <$t as Reducible>::Wide {
                $result
            }
        }
    )*};
}

combine!(Sum for i8, u8, i16, u16, i32, u32, i64, u64: |a, b| a.wrapping_add(b));
combine!(Prod for i8, u8, i16, u16, i32, u32, i64, u64: |a, b| a.wrapping_mul(b));
combine!(Min for i8, u8, i16, u16, i32, u32, i64, u64: |a, b| if b < a { b } else { a });
combine!(Max for i8, u8, i16, u16, i32, u32, i64, u64: |a, b| if b > a { b } else { a });
combine!(And for i8, u8, i16, u16, i32, u32, i64, u64: |a, b| a & b);
combine!(Or for i8, u8, i16, u16, i32, u32, i64, u64: |a, b| a | b);
combine!(Xor for i8, u8, i16, u16, i32, u32, i64, u64: |a, b| a ^ b);
combine!(Sum for f16, bf16, f32, f64: |a, b| a + b);
combine!(Prod for f16, bf16, f32, f64: |a, b| a * b);
combine!(Min for f16, bf16, f32, f64: |a, b| a.min(b));
combine!(Max for f16, bf16, f32, f64: |a, b| a.max(b));

macro_rules! reducible {
    ($t:ty as $wide:ty, $bits:ty, $n:literal, |$w:ident| $widen:expr, |$v:ident| $narrow:expr, |$x:ident| $to_bits:expr,
        |$y:ident| $from_bits:expr) => {
        impl Reducible for $t {
            type Wide = $wide;
            type Lanes = [$wide; $n];

            #[inline(always)]
            fn widen(self) -> $wide {
                let $w = self;
                $widen
            }

            #[inline(always)]
            fn narrow($v: $wide) -> Self {
                $narrow
            }

            #[inline(always)]
            fn unpack(vector: Vector) -> [$wide; $n] {
                core::array::from_fn(|k| {
                    let $y = (vector[k * <$bits>::BITS as usize / 64] >> (k * <$bits>::BITS as usize % 64)) as $bits;
                    let element: $t = $from_bits;
                    element.widen()
                })
            }

            #[inline(always)]
            fn pack(lanes: [$wide; $n]) -> Vector {
                // The array is accessed by indices, because the compiler would place the array of
                // an iterator in memory.
                let bits = |k: usize| -> $bits {
                    let $x = Self::narrow(lanes[k]);
                    $to_bits
                };
                core::array::from_fn(|half| {
                    (0..$n / 2).fold(0, |word, k| word | u64::from(bits(half * ($n / 2) + k)) << (k * <$bits>::BITS as usize))
                })
            }

            #[inline(always)]
            fn zip<C: Combine<Self>>(a: [$wide; $n], b: [$wide; $n]) -> [$wide; $n] {
                core::array::from_fn(|k| C::combine(a[k], b[k]))
            }
        }
    };
}

reducible!(i8 as i8, u8, 16, |w| w, |v| v, |x| x as u8, |y| y as i8);
reducible!(u8 as u8, u8, 16, |w| w, |v| v, |x| x, |y| y);
reducible!(i16 as i16, u16, 8, |w| w, |v| v, |x| x as u16, |y| y as i16);
reducible!(u16 as u16, u16, 8, |w| w, |v| v, |x| x, |y| y);
reducible!(i32 as i32, u32, 4, |w| w, |v| v, |x| x as u32, |y| y as i32);
reducible!(u32 as u32, u32, 4, |w| w, |v| v, |x| x, |y| y);
reducible!(i64 as i64, u64, 2, |w| w, |v| v, |x| x as u64, |y| y as i64);
reducible!(u64 as u64, u64, 2, |w| w, |v| v, |x| x, |y| y);
reducible!(f32 as f32, u32, 4, |w| w, |v| v, |x| x.to_bits(), |y| f32::from_bits(y));
reducible!(f64 as f64, u64, 2, |w| w, |v| v, |x| x.to_bits(), |y| f64::from_bits(y));

/// Implements [`Reducible`] for a 16-bit float. `$values` and `$pair` are functions that convert
/// two values at a time.
macro_rules! reducible_pairs {
    ($t:ty, $values:ident, $pair:ident) => {
        impl Reducible for $t {
            type Wide = f32;
            type Lanes = [f32; 8];

            #[inline(always)]
            fn widen(self) -> f32 {
                gpu::$values(u32::from(self.to_bits()))[0]
            }

            #[inline(always)]
            fn narrow(wide: f32) -> Self {
                Self::from_bits(gpu::$pair([wide, 0.0]) as u16)
            }

            #[inline(always)]
            fn unpack(vector: Vector) -> [f32; 8] {
                let [[a, b], [c, d]] = vector.map(|half| [gpu::$values(half as u32), gpu::$values((half >> 32) as u32)]);
                [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]]
            }

            #[inline(always)]
            fn pack(lanes: [f32; 8]) -> Vector {
                let pair = |k: usize| u64::from(gpu::$pair([lanes[k], lanes[k + 1]]));
                [pair(0) | pair(2) << 32, pair(4) | pair(6) << 32]
            }

            #[inline(always)]
            fn zip<C: Combine<Self>>(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
                core::array::from_fn(|k| C::combine(a[k], b[k]))
            }
        }
    };
}

reducible_pairs!(f16, f16_values, f16_pair);
reducible_pairs!(bf16, bf16_values, bf16_pair);
