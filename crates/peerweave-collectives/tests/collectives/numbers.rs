//! Element types with a reference implementation of each reduction. The implementation computes one
//! element at a time.

use peerweave_types::{Element, Plain, ReduceOp, bf16, f16};

/// An element type of a test, with input values and a reference implementation of reductions.
pub(crate) trait Numbers: Element + Plain + PartialEq + std::fmt::Debug {
    /// Returns the element at `index` in the input of rank `rank`.
    fn given(rank: u32, index: usize) -> Self;
    /// Returns the bits of the element, zero-extended.
    fn bits(self) -> u64;
    /// Returns the expected reduction of `inputs`, which has one element of each rank, in the order
    /// of ranks. `scalars` has one scalar for each rank, for `PreMulSum`.
    fn expected(op: ReduceOp, inputs: &[Self], scalars: &[Self]) -> Self;
}

fn mixed(rank: u32, index: usize) -> u64 {
    let mixed = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(rank + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    mixed ^ (mixed >> 29)
}

macro_rules! integers {
    ($($t:ty as $unsigned:ty),*) => {$(
        impl Numbers for $t {
            fn given(rank: u32, index: usize) -> Self {
                mixed(rank, index) as Self
            }

            fn bits(self) -> u64 {
                self as $unsigned as u64
            }

            fn expected(op: ReduceOp, inputs: &[Self], scalars: &[Self]) -> Self {
                let each = inputs.iter().copied();
                let sum = |each: &mut dyn Iterator<Item = Self>| each.fold(0, Self::wrapping_add);
                match op {
                    ReduceOp::Sum => sum(&mut each.clone()),
                    ReduceOp::Avg => sum(&mut each.clone()) / inputs.len() as Self,
                    ReduceOp::PreMulSum => sum(&mut each.zip(scalars).map(|(a, b)| a.wrapping_mul(*b))),
                    ReduceOp::Prod => each.fold(1, Self::wrapping_mul),
                    ReduceOp::Min => each.min().expect("there is at least one rank"),
                    ReduceOp::Max => each.max().expect("there is at least one rank"),
                    ReduceOp::And => each.fold(!0, |a, b| a & b),
                    ReduceOp::Or => each.fold(0, |a, b| a | b),
                    ReduceOp::Xor => each.fold(0, |a, b| a ^ b),
                    other => panic!("{other} has no reference implementation"),
                }
            }
        }
    )*};
}

integers!(i8 as u8, u8 as u8, i16 as u16, u16 as u16, i32 as u32, u32 as u32, i64 as u64, u64 as u64);

macro_rules! floats {
    ($($t:ty as $wide:ty: |$x:ident| $widen:expr, |$y:ident| $narrow:expr;)*) => {$(
        impl Numbers for $t {
            fn given(rank: u32, index: usize) -> Self {
                // The elements have many magnitudes, so that the order of additions changes the
                // result.
                let bits = mixed(rank, index);
                let $y = (((bits % 2001) as f64 - 1000.0) * [0.001, 0.37, 1.0, 3.0][(bits >> 40) as usize % 4]) as $wide;
                $narrow
            }

            fn bits(self) -> u64 {
                u64::from(self.to_bits())
            }

            fn expected(op: ReduceOp, inputs: &[Self], scalars: &[Self]) -> Self {
                let widen = |$x: Self| -> $wide { $widen };
                let narrow = |$y: $wide| -> Self { $narrow };
                let each = inputs.iter().map(|input| widen(*input));
                let sum = |each: &mut dyn Iterator<Item = $wide>| each.reduce(|a, b| a + b).expect("there is at least one rank");
                match op {
                    ReduceOp::Sum => narrow(sum(&mut each.clone())),
                    ReduceOp::Avg => narrow(sum(&mut each.clone()) / inputs.len() as $wide),
                    // Each product is rounded to the element type.
                    ReduceOp::PreMulSum => {
                        narrow(sum(&mut each.zip(scalars).map(|(a, b)| widen(narrow(a * widen(*b))))))
                    }
                    ReduceOp::Prod => narrow(each.reduce(|a, b| a * b).expect("there is at least one rank")),
                    ReduceOp::Min => narrow(each.reduce(<$wide>::min).expect("there is at least one rank")),
                    ReduceOp::Max => narrow(each.reduce(<$wide>::max).expect("there is at least one rank")),
                    other => panic!("{other} has no reference implementation"),
                }
            }
        }
    )*};
}

floats! {
    f16 as f32: |x| x.to_f32(), |y| Self::from_f32(y);
    bf16 as f32: |x| x.to_f32(), |y| Self::from_f32(y);
    f32 as f32: |x| x, |y| y;
    f64 as f64: |x| x, |y| y;
}
