//! How elements are combined in a reduction: sum, product, smallest, largest, bitwise.
//!
//! 16-bit floats are combined in `f32` and rounded once. Integers wrap. The smallest and largest of
//! floats ignore a NaN unless all are NaN.

use crate::api::scope::{Kind, Scope};
use crate::gpu::Vector;
use peerweave_types::{Element, bf16, f16};

/// A reduction of elements `T`: [`Sum`], [`Prod`], [`Min`], [`Max`], and for integers [`And`],
/// [`Or`], [`Xor`].
pub trait Combine<T: Reducible>: Copy + 'static {
    /// Combines two values.
    fn combine(a: T::Wide, b: T::Wide) -> T::Wide;
    /// The number by which [`Reducible::network`] finds its wrapper.
    #[doc(hidden)]
    const NUMBER: usize;
}

/// An element that kernels reduce.
pub trait Reducible: Element + peerweave_types::Plain {
    /// What it is combined in.
    type Wide: Copy;
    /// As many elements as 16 bytes hold, widened.
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
    /// Reduces through NVSHMEM.
    #[doc(hidden)]
    fn network<C: Combine<Self>, S: Scope, const SCATTER: bool>(team: i32, to: u64, from: u64, count: u64);
}

macro_rules! operation {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
    };
}

operation!(
    /// The sum.
    Sum
);
operation!(
    /// The product.
    Prod
);
operation!(
    /// The smallest.
    Min
);
operation!(
    /// The largest.
    Max
);
operation!(
    /// Bitwise and.
    And
);
operation!(
    /// Bitwise or.
    Or
);
operation!(
    /// Bitwise exclusive or.
    Xor
);

macro_rules! combine {
    ($operation:ident $number:literal for $($t:ty),*: |$a:ident, $b:ident| $result:expr) => {$(
        impl Combine<$t> for $operation {
            const NUMBER: usize = $number;

            #[inline(always)]
            fn combine($a: <$t as Reducible>::Wide, $b: <$t as Reducible>::Wide) -> <$t as Reducible>::Wide {
                $result
            }
        }
    )*};
}

combine!(Sum 0 for i8, u8, i32, u32, i64, u64: |a, b| a.wrapping_add(b));
combine!(Prod 1 for i8, u8, i32, u32, i64, u64: |a, b| a.wrapping_mul(b));
combine!(Min 2 for i8, u8, i32, u32, i64, u64: |a, b| if b < a { b } else { a });
combine!(Max 3 for i8, u8, i32, u32, i64, u64: |a, b| if b > a { b } else { a });
combine!(And 4 for i8, u8, i32, u32, i64, u64: |a, b| a & b);
combine!(Or 5 for i8, u8, i32, u32, i64, u64: |a, b| a | b);
combine!(Xor 6 for i8, u8, i32, u32, i64, u64: |a, b| a ^ b);
combine!(Sum 0 for f16, bf16, f32, f64: |a, b| a + b);
combine!(Prod 1 for f16, bf16, f32, f64: |a, b| a * b);
combine!(Min 2 for f16, bf16, f32, f64: |a, b| a.min(b));
combine!(Max 3 for f16, bf16, f32, f64: |a, b| a.max(b));

/// The wrapper of a reduction, by its number; bitwise ones where there are any.
macro_rules! network {
    ($number:expr, $team:ident, $to:ident, $from:ident, $count:ident: $($index:literal $name:ident),*) => {
        match $number {
            $($index => crate::api::network::call!($name($team, $to, $from, $count)),)*
            _ => {}
        }
    };
}

macro_rules! reducible {
    ($t:ty as $wide:ty, $bits:ty, $n:literal, |$w:ident| $widen:expr, |$v:ident| $narrow:expr, |$x:ident| $to_bits:expr,
        |$y:ident| $from_bits:expr; $($index:literal $rt:ident $rw:ident $rb:ident $st:ident $sw:ident $sb:ident),*) => {
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
                let mut vector = [0; 2];
                for (k, lane) in lanes.into_iter().enumerate() {
                    let $x = Self::narrow(lane);
                    let bits: $bits = $to_bits;
                    vector[k * <$bits>::BITS as usize / 64] |= u64::from(bits) << (k * <$bits>::BITS as usize % 64);
                }
                vector
            }

            #[inline(always)]
            fn zip<C: Combine<Self>>(a: [$wide; $n], b: [$wide; $n]) -> [$wide; $n] {
                core::array::from_fn(|k| C::combine(a[k], b[k]))
            }

            #[inline]
            fn network<C: Combine<Self>, S: Scope, const SCATTER: bool>(team: i32, to: u64, from: u64, count: u64) {
                match (SCATTER, S::KIND) {
                    (false, Kind::Thread) => network!(C::NUMBER, team, to, from, count: $($index $rt),*),
                    (false, Kind::Warp) => network!(C::NUMBER, team, to, from, count: $($index $rw),*),
                    (false, Kind::Block) => network!(C::NUMBER, team, to, from, count: $($index $rb),*),
                    (true, Kind::Thread) => network!(C::NUMBER, team, to, from, count: $($index $st),*),
                    (true, Kind::Warp) => network!(C::NUMBER, team, to, from, count: $($index $sw),*),
                    (true, Kind::Block) => network!(C::NUMBER, team, to, from, count: $($index $sb),*),
                }
            }
        }
    };
}

reducible!(i8 as i8, u8, 16, |w| w, |v| v, |x| x as u8, |y| y as i8;
    0 peerweave_nvshmem_reduce_sum_i8_thread peerweave_nvshmem_reduce_sum_i8_warp peerweave_nvshmem_reduce_sum_i8_block peerweave_nvshmem_reducescatter_sum_i8_thread peerweave_nvshmem_reducescatter_sum_i8_warp peerweave_nvshmem_reducescatter_sum_i8_block,
    1 peerweave_nvshmem_reduce_prod_i8_thread peerweave_nvshmem_reduce_prod_i8_warp peerweave_nvshmem_reduce_prod_i8_block peerweave_nvshmem_reducescatter_prod_i8_thread peerweave_nvshmem_reducescatter_prod_i8_warp peerweave_nvshmem_reducescatter_prod_i8_block,
    2 peerweave_nvshmem_reduce_min_i8_thread peerweave_nvshmem_reduce_min_i8_warp peerweave_nvshmem_reduce_min_i8_block peerweave_nvshmem_reducescatter_min_i8_thread peerweave_nvshmem_reducescatter_min_i8_warp peerweave_nvshmem_reducescatter_min_i8_block,
    3 peerweave_nvshmem_reduce_max_i8_thread peerweave_nvshmem_reduce_max_i8_warp peerweave_nvshmem_reduce_max_i8_block peerweave_nvshmem_reducescatter_max_i8_thread peerweave_nvshmem_reducescatter_max_i8_warp peerweave_nvshmem_reducescatter_max_i8_block,
    4 peerweave_nvshmem_reduce_and_i8_thread peerweave_nvshmem_reduce_and_i8_warp peerweave_nvshmem_reduce_and_i8_block peerweave_nvshmem_reducescatter_and_i8_thread peerweave_nvshmem_reducescatter_and_i8_warp peerweave_nvshmem_reducescatter_and_i8_block,
    5 peerweave_nvshmem_reduce_or_i8_thread peerweave_nvshmem_reduce_or_i8_warp peerweave_nvshmem_reduce_or_i8_block peerweave_nvshmem_reducescatter_or_i8_thread peerweave_nvshmem_reducescatter_or_i8_warp peerweave_nvshmem_reducescatter_or_i8_block,
    6 peerweave_nvshmem_reduce_xor_i8_thread peerweave_nvshmem_reduce_xor_i8_warp peerweave_nvshmem_reduce_xor_i8_block peerweave_nvshmem_reducescatter_xor_i8_thread peerweave_nvshmem_reducescatter_xor_i8_warp peerweave_nvshmem_reducescatter_xor_i8_block);
reducible!(u8 as u8, u8, 16, |w| w, |v| v, |x| x, |y| y;
    0 peerweave_nvshmem_reduce_sum_u8_thread peerweave_nvshmem_reduce_sum_u8_warp peerweave_nvshmem_reduce_sum_u8_block peerweave_nvshmem_reducescatter_sum_u8_thread peerweave_nvshmem_reducescatter_sum_u8_warp peerweave_nvshmem_reducescatter_sum_u8_block,
    1 peerweave_nvshmem_reduce_prod_u8_thread peerweave_nvshmem_reduce_prod_u8_warp peerweave_nvshmem_reduce_prod_u8_block peerweave_nvshmem_reducescatter_prod_u8_thread peerweave_nvshmem_reducescatter_prod_u8_warp peerweave_nvshmem_reducescatter_prod_u8_block,
    2 peerweave_nvshmem_reduce_min_u8_thread peerweave_nvshmem_reduce_min_u8_warp peerweave_nvshmem_reduce_min_u8_block peerweave_nvshmem_reducescatter_min_u8_thread peerweave_nvshmem_reducescatter_min_u8_warp peerweave_nvshmem_reducescatter_min_u8_block,
    3 peerweave_nvshmem_reduce_max_u8_thread peerweave_nvshmem_reduce_max_u8_warp peerweave_nvshmem_reduce_max_u8_block peerweave_nvshmem_reducescatter_max_u8_thread peerweave_nvshmem_reducescatter_max_u8_warp peerweave_nvshmem_reducescatter_max_u8_block,
    4 peerweave_nvshmem_reduce_and_u8_thread peerweave_nvshmem_reduce_and_u8_warp peerweave_nvshmem_reduce_and_u8_block peerweave_nvshmem_reducescatter_and_u8_thread peerweave_nvshmem_reducescatter_and_u8_warp peerweave_nvshmem_reducescatter_and_u8_block,
    5 peerweave_nvshmem_reduce_or_u8_thread peerweave_nvshmem_reduce_or_u8_warp peerweave_nvshmem_reduce_or_u8_block peerweave_nvshmem_reducescatter_or_u8_thread peerweave_nvshmem_reducescatter_or_u8_warp peerweave_nvshmem_reducescatter_or_u8_block,
    6 peerweave_nvshmem_reduce_xor_u8_thread peerweave_nvshmem_reduce_xor_u8_warp peerweave_nvshmem_reduce_xor_u8_block peerweave_nvshmem_reducescatter_xor_u8_thread peerweave_nvshmem_reducescatter_xor_u8_warp peerweave_nvshmem_reducescatter_xor_u8_block);
reducible!(i32 as i32, u32, 4, |w| w, |v| v, |x| x as u32, |y| y as i32;
    0 peerweave_nvshmem_reduce_sum_i32_thread peerweave_nvshmem_reduce_sum_i32_warp peerweave_nvshmem_reduce_sum_i32_block peerweave_nvshmem_reducescatter_sum_i32_thread peerweave_nvshmem_reducescatter_sum_i32_warp peerweave_nvshmem_reducescatter_sum_i32_block,
    1 peerweave_nvshmem_reduce_prod_i32_thread peerweave_nvshmem_reduce_prod_i32_warp peerweave_nvshmem_reduce_prod_i32_block peerweave_nvshmem_reducescatter_prod_i32_thread peerweave_nvshmem_reducescatter_prod_i32_warp peerweave_nvshmem_reducescatter_prod_i32_block,
    2 peerweave_nvshmem_reduce_min_i32_thread peerweave_nvshmem_reduce_min_i32_warp peerweave_nvshmem_reduce_min_i32_block peerweave_nvshmem_reducescatter_min_i32_thread peerweave_nvshmem_reducescatter_min_i32_warp peerweave_nvshmem_reducescatter_min_i32_block,
    3 peerweave_nvshmem_reduce_max_i32_thread peerweave_nvshmem_reduce_max_i32_warp peerweave_nvshmem_reduce_max_i32_block peerweave_nvshmem_reducescatter_max_i32_thread peerweave_nvshmem_reducescatter_max_i32_warp peerweave_nvshmem_reducescatter_max_i32_block,
    4 peerweave_nvshmem_reduce_and_i32_thread peerweave_nvshmem_reduce_and_i32_warp peerweave_nvshmem_reduce_and_i32_block peerweave_nvshmem_reducescatter_and_i32_thread peerweave_nvshmem_reducescatter_and_i32_warp peerweave_nvshmem_reducescatter_and_i32_block,
    5 peerweave_nvshmem_reduce_or_i32_thread peerweave_nvshmem_reduce_or_i32_warp peerweave_nvshmem_reduce_or_i32_block peerweave_nvshmem_reducescatter_or_i32_thread peerweave_nvshmem_reducescatter_or_i32_warp peerweave_nvshmem_reducescatter_or_i32_block,
    6 peerweave_nvshmem_reduce_xor_i32_thread peerweave_nvshmem_reduce_xor_i32_warp peerweave_nvshmem_reduce_xor_i32_block peerweave_nvshmem_reducescatter_xor_i32_thread peerweave_nvshmem_reducescatter_xor_i32_warp peerweave_nvshmem_reducescatter_xor_i32_block);
reducible!(u32 as u32, u32, 4, |w| w, |v| v, |x| x, |y| y;
    0 peerweave_nvshmem_reduce_sum_u32_thread peerweave_nvshmem_reduce_sum_u32_warp peerweave_nvshmem_reduce_sum_u32_block peerweave_nvshmem_reducescatter_sum_u32_thread peerweave_nvshmem_reducescatter_sum_u32_warp peerweave_nvshmem_reducescatter_sum_u32_block,
    1 peerweave_nvshmem_reduce_prod_u32_thread peerweave_nvshmem_reduce_prod_u32_warp peerweave_nvshmem_reduce_prod_u32_block peerweave_nvshmem_reducescatter_prod_u32_thread peerweave_nvshmem_reducescatter_prod_u32_warp peerweave_nvshmem_reducescatter_prod_u32_block,
    2 peerweave_nvshmem_reduce_min_u32_thread peerweave_nvshmem_reduce_min_u32_warp peerweave_nvshmem_reduce_min_u32_block peerweave_nvshmem_reducescatter_min_u32_thread peerweave_nvshmem_reducescatter_min_u32_warp peerweave_nvshmem_reducescatter_min_u32_block,
    3 peerweave_nvshmem_reduce_max_u32_thread peerweave_nvshmem_reduce_max_u32_warp peerweave_nvshmem_reduce_max_u32_block peerweave_nvshmem_reducescatter_max_u32_thread peerweave_nvshmem_reducescatter_max_u32_warp peerweave_nvshmem_reducescatter_max_u32_block,
    4 peerweave_nvshmem_reduce_and_u32_thread peerweave_nvshmem_reduce_and_u32_warp peerweave_nvshmem_reduce_and_u32_block peerweave_nvshmem_reducescatter_and_u32_thread peerweave_nvshmem_reducescatter_and_u32_warp peerweave_nvshmem_reducescatter_and_u32_block,
    5 peerweave_nvshmem_reduce_or_u32_thread peerweave_nvshmem_reduce_or_u32_warp peerweave_nvshmem_reduce_or_u32_block peerweave_nvshmem_reducescatter_or_u32_thread peerweave_nvshmem_reducescatter_or_u32_warp peerweave_nvshmem_reducescatter_or_u32_block,
    6 peerweave_nvshmem_reduce_xor_u32_thread peerweave_nvshmem_reduce_xor_u32_warp peerweave_nvshmem_reduce_xor_u32_block peerweave_nvshmem_reducescatter_xor_u32_thread peerweave_nvshmem_reducescatter_xor_u32_warp peerweave_nvshmem_reducescatter_xor_u32_block);
reducible!(i64 as i64, u64, 2, |w| w, |v| v, |x| x as u64, |y| y as i64;
    0 peerweave_nvshmem_reduce_sum_i64_thread peerweave_nvshmem_reduce_sum_i64_warp peerweave_nvshmem_reduce_sum_i64_block peerweave_nvshmem_reducescatter_sum_i64_thread peerweave_nvshmem_reducescatter_sum_i64_warp peerweave_nvshmem_reducescatter_sum_i64_block,
    1 peerweave_nvshmem_reduce_prod_i64_thread peerweave_nvshmem_reduce_prod_i64_warp peerweave_nvshmem_reduce_prod_i64_block peerweave_nvshmem_reducescatter_prod_i64_thread peerweave_nvshmem_reducescatter_prod_i64_warp peerweave_nvshmem_reducescatter_prod_i64_block,
    2 peerweave_nvshmem_reduce_min_i64_thread peerweave_nvshmem_reduce_min_i64_warp peerweave_nvshmem_reduce_min_i64_block peerweave_nvshmem_reducescatter_min_i64_thread peerweave_nvshmem_reducescatter_min_i64_warp peerweave_nvshmem_reducescatter_min_i64_block,
    3 peerweave_nvshmem_reduce_max_i64_thread peerweave_nvshmem_reduce_max_i64_warp peerweave_nvshmem_reduce_max_i64_block peerweave_nvshmem_reducescatter_max_i64_thread peerweave_nvshmem_reducescatter_max_i64_warp peerweave_nvshmem_reducescatter_max_i64_block,
    4 peerweave_nvshmem_reduce_and_i64_thread peerweave_nvshmem_reduce_and_i64_warp peerweave_nvshmem_reduce_and_i64_block peerweave_nvshmem_reducescatter_and_i64_thread peerweave_nvshmem_reducescatter_and_i64_warp peerweave_nvshmem_reducescatter_and_i64_block,
    5 peerweave_nvshmem_reduce_or_i64_thread peerweave_nvshmem_reduce_or_i64_warp peerweave_nvshmem_reduce_or_i64_block peerweave_nvshmem_reducescatter_or_i64_thread peerweave_nvshmem_reducescatter_or_i64_warp peerweave_nvshmem_reducescatter_or_i64_block,
    6 peerweave_nvshmem_reduce_xor_i64_thread peerweave_nvshmem_reduce_xor_i64_warp peerweave_nvshmem_reduce_xor_i64_block peerweave_nvshmem_reducescatter_xor_i64_thread peerweave_nvshmem_reducescatter_xor_i64_warp peerweave_nvshmem_reducescatter_xor_i64_block);
reducible!(u64 as u64, u64, 2, |w| w, |v| v, |x| x, |y| y;
    0 peerweave_nvshmem_reduce_sum_u64_thread peerweave_nvshmem_reduce_sum_u64_warp peerweave_nvshmem_reduce_sum_u64_block peerweave_nvshmem_reducescatter_sum_u64_thread peerweave_nvshmem_reducescatter_sum_u64_warp peerweave_nvshmem_reducescatter_sum_u64_block,
    1 peerweave_nvshmem_reduce_prod_u64_thread peerweave_nvshmem_reduce_prod_u64_warp peerweave_nvshmem_reduce_prod_u64_block peerweave_nvshmem_reducescatter_prod_u64_thread peerweave_nvshmem_reducescatter_prod_u64_warp peerweave_nvshmem_reducescatter_prod_u64_block,
    2 peerweave_nvshmem_reduce_min_u64_thread peerweave_nvshmem_reduce_min_u64_warp peerweave_nvshmem_reduce_min_u64_block peerweave_nvshmem_reducescatter_min_u64_thread peerweave_nvshmem_reducescatter_min_u64_warp peerweave_nvshmem_reducescatter_min_u64_block,
    3 peerweave_nvshmem_reduce_max_u64_thread peerweave_nvshmem_reduce_max_u64_warp peerweave_nvshmem_reduce_max_u64_block peerweave_nvshmem_reducescatter_max_u64_thread peerweave_nvshmem_reducescatter_max_u64_warp peerweave_nvshmem_reducescatter_max_u64_block,
    4 peerweave_nvshmem_reduce_and_u64_thread peerweave_nvshmem_reduce_and_u64_warp peerweave_nvshmem_reduce_and_u64_block peerweave_nvshmem_reducescatter_and_u64_thread peerweave_nvshmem_reducescatter_and_u64_warp peerweave_nvshmem_reducescatter_and_u64_block,
    5 peerweave_nvshmem_reduce_or_u64_thread peerweave_nvshmem_reduce_or_u64_warp peerweave_nvshmem_reduce_or_u64_block peerweave_nvshmem_reducescatter_or_u64_thread peerweave_nvshmem_reducescatter_or_u64_warp peerweave_nvshmem_reducescatter_or_u64_block,
    6 peerweave_nvshmem_reduce_xor_u64_thread peerweave_nvshmem_reduce_xor_u64_warp peerweave_nvshmem_reduce_xor_u64_block peerweave_nvshmem_reducescatter_xor_u64_thread peerweave_nvshmem_reducescatter_xor_u64_warp peerweave_nvshmem_reducescatter_xor_u64_block);
reducible!(f16 as f32, u16, 8, |w| w.to_f32(), |v| f16::from_f32(v), |x| x.to_bits(), |y| f16::from_bits(y);
    0 peerweave_nvshmem_reduce_sum_f16_thread peerweave_nvshmem_reduce_sum_f16_warp peerweave_nvshmem_reduce_sum_f16_block peerweave_nvshmem_reducescatter_sum_f16_thread peerweave_nvshmem_reducescatter_sum_f16_warp peerweave_nvshmem_reducescatter_sum_f16_block,
    1 peerweave_nvshmem_reduce_prod_f16_thread peerweave_nvshmem_reduce_prod_f16_warp peerweave_nvshmem_reduce_prod_f16_block peerweave_nvshmem_reducescatter_prod_f16_thread peerweave_nvshmem_reducescatter_prod_f16_warp peerweave_nvshmem_reducescatter_prod_f16_block,
    2 peerweave_nvshmem_reduce_min_f16_thread peerweave_nvshmem_reduce_min_f16_warp peerweave_nvshmem_reduce_min_f16_block peerweave_nvshmem_reducescatter_min_f16_thread peerweave_nvshmem_reducescatter_min_f16_warp peerweave_nvshmem_reducescatter_min_f16_block,
    3 peerweave_nvshmem_reduce_max_f16_thread peerweave_nvshmem_reduce_max_f16_warp peerweave_nvshmem_reduce_max_f16_block peerweave_nvshmem_reducescatter_max_f16_thread peerweave_nvshmem_reducescatter_max_f16_warp peerweave_nvshmem_reducescatter_max_f16_block);
reducible!(bf16 as f32, u16, 8, |w| w.to_f32(), |v| bf16::from_f32(v), |x| x.to_bits(), |y| bf16::from_bits(y);
    0 peerweave_nvshmem_reduce_sum_bf16_thread peerweave_nvshmem_reduce_sum_bf16_warp peerweave_nvshmem_reduce_sum_bf16_block peerweave_nvshmem_reducescatter_sum_bf16_thread peerweave_nvshmem_reducescatter_sum_bf16_warp peerweave_nvshmem_reducescatter_sum_bf16_block,
    1 peerweave_nvshmem_reduce_prod_bf16_thread peerweave_nvshmem_reduce_prod_bf16_warp peerweave_nvshmem_reduce_prod_bf16_block peerweave_nvshmem_reducescatter_prod_bf16_thread peerweave_nvshmem_reducescatter_prod_bf16_warp peerweave_nvshmem_reducescatter_prod_bf16_block,
    2 peerweave_nvshmem_reduce_min_bf16_thread peerweave_nvshmem_reduce_min_bf16_warp peerweave_nvshmem_reduce_min_bf16_block peerweave_nvshmem_reducescatter_min_bf16_thread peerweave_nvshmem_reducescatter_min_bf16_warp peerweave_nvshmem_reducescatter_min_bf16_block,
    3 peerweave_nvshmem_reduce_max_bf16_thread peerweave_nvshmem_reduce_max_bf16_warp peerweave_nvshmem_reduce_max_bf16_block peerweave_nvshmem_reducescatter_max_bf16_thread peerweave_nvshmem_reducescatter_max_bf16_warp peerweave_nvshmem_reducescatter_max_bf16_block);
reducible!(f32 as f32, u32, 4, |w| w, |v| v, |x| x.to_bits(), |y| f32::from_bits(y);
    0 peerweave_nvshmem_reduce_sum_f32_thread peerweave_nvshmem_reduce_sum_f32_warp peerweave_nvshmem_reduce_sum_f32_block peerweave_nvshmem_reducescatter_sum_f32_thread peerweave_nvshmem_reducescatter_sum_f32_warp peerweave_nvshmem_reducescatter_sum_f32_block,
    1 peerweave_nvshmem_reduce_prod_f32_thread peerweave_nvshmem_reduce_prod_f32_warp peerweave_nvshmem_reduce_prod_f32_block peerweave_nvshmem_reducescatter_prod_f32_thread peerweave_nvshmem_reducescatter_prod_f32_warp peerweave_nvshmem_reducescatter_prod_f32_block,
    2 peerweave_nvshmem_reduce_min_f32_thread peerweave_nvshmem_reduce_min_f32_warp peerweave_nvshmem_reduce_min_f32_block peerweave_nvshmem_reducescatter_min_f32_thread peerweave_nvshmem_reducescatter_min_f32_warp peerweave_nvshmem_reducescatter_min_f32_block,
    3 peerweave_nvshmem_reduce_max_f32_thread peerweave_nvshmem_reduce_max_f32_warp peerweave_nvshmem_reduce_max_f32_block peerweave_nvshmem_reducescatter_max_f32_thread peerweave_nvshmem_reducescatter_max_f32_warp peerweave_nvshmem_reducescatter_max_f32_block);
reducible!(f64 as f64, u64, 2, |w| w, |v| v, |x| x.to_bits(), |y| f64::from_bits(y);
    0 peerweave_nvshmem_reduce_sum_f64_thread peerweave_nvshmem_reduce_sum_f64_warp peerweave_nvshmem_reduce_sum_f64_block peerweave_nvshmem_reducescatter_sum_f64_thread peerweave_nvshmem_reducescatter_sum_f64_warp peerweave_nvshmem_reducescatter_sum_f64_block,
    1 peerweave_nvshmem_reduce_prod_f64_thread peerweave_nvshmem_reduce_prod_f64_warp peerweave_nvshmem_reduce_prod_f64_block peerweave_nvshmem_reducescatter_prod_f64_thread peerweave_nvshmem_reducescatter_prod_f64_warp peerweave_nvshmem_reducescatter_prod_f64_block,
    2 peerweave_nvshmem_reduce_min_f64_thread peerweave_nvshmem_reduce_min_f64_warp peerweave_nvshmem_reduce_min_f64_block peerweave_nvshmem_reducescatter_min_f64_thread peerweave_nvshmem_reducescatter_min_f64_warp peerweave_nvshmem_reducescatter_min_f64_block,
    3 peerweave_nvshmem_reduce_max_f64_thread peerweave_nvshmem_reduce_max_f64_warp peerweave_nvshmem_reduce_max_f64_block peerweave_nvshmem_reducescatter_max_f64_thread peerweave_nvshmem_reducescatter_max_f64_warp peerweave_nvshmem_reducescatter_max_f64_block);
