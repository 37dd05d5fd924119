//! A simple reference implementation of the reductions. It uses no vectors. Integers are computed
//! in 128 bits, and 16-bit floats with the `half` crate.

use half::{bf16, f16};
use peerweave_types::{DType, ReduceOp};

/// Returns the expected result of a reduction. Each input consists of its elements, as bytes, and
/// its scalar.
pub(super) fn reduce(dtype: DType, op: ReduceOp, inputs: &[(Vec<u8>, u64)]) -> Vec<u8> {
    match dtype {
        DType::I8 => integers::<1>(op, inputs, true),
        DType::U8 => integers::<1>(op, inputs, false),
        DType::I16 => integers::<2>(op, inputs, true),
        DType::U16 => integers::<2>(op, inputs, false),
        DType::I32 => integers::<4>(op, inputs, true),
        DType::U32 => integers::<4>(op, inputs, false),
        DType::I64 => integers::<8>(op, inputs, true),
        DType::U64 => integers::<8>(op, inputs, false),
        DType::F16 => floats::<2, f32>(
            op,
            inputs,
            |b| f16::from_le_bytes(b).to_f32(),
            |v| if v.is_nan() { 0x7e00u16.to_le_bytes() } else { f16::from_f32(v).to_le_bytes() },
        ),
        DType::BF16 => floats::<2, f32>(
            op,
            inputs,
            |b| bf16::from_le_bytes(b).to_f32(),
            |v| if v.is_nan() { 0x7fc0u16.to_le_bytes() } else { bf16::from_f32(v).to_le_bytes() },
        ),
        DType::F32 => floats::<4, f32>(op, inputs, f32::from_le_bytes, |v| {
            if v.is_nan() { 0x7fc0_0000u32.to_le_bytes() } else { v.to_le_bytes() }
        }),
        DType::F64 => floats::<8, f64>(op, inputs, f64::from_le_bytes, |v| {
            if v.is_nan() { 0x7ff8_0000_0000_0000u64.to_le_bytes() } else { v.to_le_bytes() }
        }),
        _ => unreachable!("{dtype} has no reductions"),
    }
}

/// Returns, for each index, the elements of all inputs at this index, with the scalars of the
/// inputs.
fn columns<const N: usize>(inputs: &[(Vec<u8>, u64)]) -> impl Iterator<Item = Vec<([u8; N], [u8; N])>> {
    let count = inputs[0].0.len() / N;
    (0..count).map(|i| {
        let element = |(bytes, scalar): &(Vec<u8>, u64)| {
            (
                bytes[i * N..][..N].try_into().expect("the slice has N bytes"),
                scalar.to_le_bytes()[..N].try_into().expect("N is at most 8"),
            )
        };
        inputs.iter().map(element).collect()
    })
}

fn integers<const N: usize>(op: ReduceOp, inputs: &[(Vec<u8>, u64)], signed: bool) -> Vec<u8> {
    let wrap = |value: i128| {
        let low = value & ((1i128 << (8 * N)) - 1);
        if signed && low >> (8 * N - 1) == 1 { low - (1i128 << (8 * N)) } else { low }
    };
    let number = |bytes: [u8; N]| {
        let mut wide = [0; 16];
        wide[..N].copy_from_slice(&bytes);
        wrap(i128::from_le_bytes(wide))
    };
    let result = columns::<N>(inputs).flat_map(|column| {
        let count = column.len() as i128;
        let numbers = column.iter().map(|&(element, scalar)| (number(element), number(scalar)));
        let elements = numbers.clone().map(|(element, _)| element);
        let value = match op {
            ReduceOp::Sum => elements.sum(),
            ReduceOp::Prod => elements.fold(1i128, |product, element| wrap(product.wrapping_mul(element))),
            ReduceOp::Min => elements.min().expect("the reduction has an input"),
            ReduceOp::Max => elements.max().expect("the reduction has an input"),
            ReduceOp::Avg => wrap(elements.sum()) / count,
            ReduceOp::PreMulSum => numbers.map(|(element, scalar)| wrap(element.wrapping_mul(scalar))).sum(),
            ReduceOp::And => elements.reduce(|a, b| a & b).expect("the reduction has an input"),
            ReduceOp::Or => elements.reduce(|a, b| a | b).expect("the reduction has an input"),
            ReduceOp::Xor => elements.reduce(|a, b| a ^ b).expect("the reduction has an input"),
            _ => unreachable!("{op} has no reference implementation"),
        };
        value.to_le_bytes().into_iter().take(N)
    });
    result.collect()
}

/// Operations that the reference needs on `f32` and `f64`.
trait Float: Copy + std::ops::Add<Output = Self> + std::ops::Mul<Output = Self> + std::ops::Div<Output = Self> {
    fn of_count(count: usize) -> Self;
    fn nan() -> Self;
    fn is_nan(self) -> bool;
    fn order(&self, other: &Self) -> std::cmp::Ordering;
}

macro_rules! float {
    ($($t:ty),*) => {$(
        impl Float for $t {
            fn of_count(count: usize) -> Self {
                count as Self
            }
            fn nan() -> Self {
                Self::NAN
            }
            fn is_nan(self) -> bool {
                self.is_nan()
            }
            fn order(&self, other: &Self) -> std::cmp::Ordering {
                self.total_cmp(other)
            }
        }
    )*};
}

float!(f32, f64);

fn floats<const N: usize, F: Float>(
    op: ReduceOp,
    inputs: &[(Vec<u8>, u64)],
    number: fn([u8; N]) -> F,
    bytes: fn(F) -> [u8; N],
) -> Vec<u8> {
    let result = columns::<N>(inputs).flat_map(|column| {
        let count = F::of_count(column.len());
        let numbers = column.iter().map(|&(element, scalar)| (number(element), number(scalar)));
        let mut elements = numbers.clone().map(|(element, _)| element);
        let value = match op {
            ReduceOp::Sum => elements.reduce(|a, b| a + b).expect("the reduction has an input"),
            ReduceOp::Prod => elements.reduce(|a, b| a * b).expect("the reduction has an input"),
            ReduceOp::Min => elements.filter(|e| !e.is_nan()).min_by(F::order).unwrap_or(F::nan()),
            ReduceOp::Max => elements.filter(|e| !e.is_nan()).max_by(F::order).unwrap_or(F::nan()),
            ReduceOp::Avg => {
                let first = elements.next().expect("the reduction has an input");
                elements.fold(first, |a, b| a + b) / count
            }
            ReduceOp::PreMulSum => {
                numbers.map(|(element, scalar)| element * scalar).reduce(|a, b| a + b).expect("the reduction has an input")
            }
            _ => unreachable!("{op} is not defined on floats"),
        };
        bytes(value)
    });
    result.collect()
}
