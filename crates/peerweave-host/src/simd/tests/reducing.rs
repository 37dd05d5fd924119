//! Tests of reductions against the reference implementation in `oracle.rs`.

use super::super::reduce::reduce_on;
use super::super::{Input, Isa, Stores};
use super::{Guarded, Random, oracle};
use half::{bf16, f16};
use peerweave_types::{DType, ReduceOp};
use proptest::prelude::*;

/// A reduction that is run and compared with the reference.
#[derive(Debug)]
struct Case {
    dtype: DType,
    op: ReduceOp,
    inputs: usize,
    outputs: usize,
    count: usize,
    /// Whether each output is the same memory as the input with the same index.
    in_place: bool,
    /// Distance of the first buffers from a cache-line boundary, in bytes. The distances of the
    /// other buffers are multiples of this distance.
    misalignment: usize,
    stores: Stores,
}

impl Case {
    /// Runs the reduction of random data with every instruction set, and compares with the
    /// reference.
    #[track_caller]
    fn check(&self, random: &mut Random) {
        let data: Vec<_> =
            (0..self.inputs).map(|_| (elements(self.dtype, self.count, random), scalar(self.dtype, random))).collect();
        self.check_data(&data);
    }

    #[track_caller]
    fn check_data(&self, data: &[(Vec<u8>, u64)]) {
        let expected = oracle::reduce(self.dtype, self.op, data);
        for isa in Isa::available() {
            let what = format_args!("{} {self:?}", isa.name()).to_string();
            let size = self.dtype.size_bytes();
            let at = |i: usize| (i + 1) * self.misalignment;
            let mut sources: Vec<_> = data.iter().enumerate().map(|(i, (bytes, _))| Guarded::new(bytes, at(i))).collect();
            // If all outputs have the same misalignment, streaming stores are used. If they have
            // different misalignments, streaming stores cannot be used.
            let apart = if self.stores == Stores::Streaming { 0 } else { 1 };
            let empty = vec![0x5a; self.count * size];
            let own = if self.in_place { self.outputs.saturating_sub(self.inputs) } else { self.outputs };
            let mut targets: Vec<_> = (0..own).map(|i| Guarded::new(&empty, at(i * apart))).collect();
            let inputs: Vec<_> =
                sources.iter_mut().zip(data).map(|(s, &(_, scalar))| Input { at: s.as_mut_ptr().cast_const(), scalar }).collect();
            let shared = if self.in_place { &inputs[..self.inputs.min(self.outputs)] } else { &[] };
            let outputs: Vec<_> =
                shared.iter().map(|input| input.at.cast_mut()).chain(targets.iter_mut().map(Guarded::as_mut_ptr)).collect();
            // SAFETY: the buffers have `count` elements, and no other code accesses them. An output
            // in place is exactly an input.
            unsafe { reduce_on(isa, self.dtype, self.op, &inputs, &outputs, self.count, self.stores) };
            let written = if self.in_place { &sources[..self.inputs.min(self.outputs)] } else { &[] };
            for (i, output) in written.iter().chain(&targets).enumerate() {
                let differs = output.content().iter().zip(&expected).position(|(a, b)| a != b);
                if let Some(differs) = differs {
                    let element = differs / size * size..differs / size * size + size;
                    panic!(
                        "{what}: output {i}, element {}: {:02x?}, expected {:02x?} of {:02x?}",
                        differs / size,
                        &output.content()[element.clone()],
                        &expected[element.clone()],
                        data.iter().map(|(bytes, scalar)| (&bytes[element.clone()], scalar)).collect::<Vec<_>>()
                    );
                }
            }
            for buffer in sources.iter().chain(&targets) {
                buffer.assert_guards(&what);
            }
            for (source, (bytes, _)) in sources.iter().zip(data).skip(written.len()) {
                assert_eq!(source.content(), bytes, "{what}: an input was written");
            }
        }
    }
}

/// Returns random elements of all magnitudes, many of which are special or equal.
fn elements(dtype: DType, count: usize, random: &mut Random) -> Vec<u8> {
    let special: &[u64] = match dtype {
        DType::F16 => &[0, 0x8000, 1, 0x8001, 0x03ff, 0x0400, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0x3c00, 0x3c01],
        DType::BF16 => &[0, 0x8000, 1, 0x8001, 0x007f, 0x0080, 0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81, 0x3f80, 0x3f81],
        DType::F32 => &[
            0,
            0x8000_0000,
            1,
            0x8000_0001,
            0x7f7f_ffff,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            0xffc0_1234,
            0x7f80_0001,
            0x3f80_0000,
        ],
        DType::F64 => {
            &[0, 1 << 63, 1, 0x7ff << 52, 0xfff << 52, 0x7ff8 << 48, 0xfff8_0000_0000_4321, (0x7ff << 52) + 1, 0x3ff << 52]
        }
        _ => &[0, 1, 2, u64::MAX, u64::MAX - 1, 0x80, 0x7f, 0x8000_0000, 0x7fff_ffff, 1 << 63, (1 << 63) - 1],
    };
    let size = dtype.size_bytes();
    let element = |random: &mut Random| match random.below(4) {
        0 => special[random.below(special.len())],
        1 => small(dtype, random.below(200) as i64 - 100),
        _ => random.next(),
    };
    (0..count).flat_map(|_| element(random).to_le_bytes().into_iter().take(size)).collect()
}

fn scalar(dtype: DType, random: &mut Random) -> u64 {
    let bits = small(dtype, random.below(17) as i64 - 8);
    if dtype.size_bytes() == 8 { bits } else { bits & ((1 << (8 * dtype.size_bytes())) - 1) }
}

/// Returns the bits of a small number. For floats the number is `value / 4`.
fn small(dtype: DType, value: i64) -> u64 {
    match dtype {
        DType::F16 => f16::from_f32(value as f32 / 4.0).to_bits().into(),
        DType::BF16 => bf16::from_f32(value as f32 / 4.0).to_bits().into(),
        DType::F32 => (value as f32 / 4.0).to_bits().into(),
        DType::F64 => (value as f64 / 4.0).to_bits(),
        _ => value as u64,
    }
}

fn reducible() -> impl Iterator<Item = (DType, ReduceOp)> {
    let pairs = DType::ALL.into_iter().flat_map(|dtype| ReduceOp::ALL.into_iter().map(move |op| (dtype, op)));
    pairs.filter(|&(dtype, op)| op.accepts(dtype)).step_by(if FEW { 7 } else { 1 })
}

/// Whether to run fewer cases, because under miri the tests take a thousand times as long.
const FEW: bool = cfg!(miri);

#[test]
fn reductions_are_correct_at_vector_boundaries() {
    let mut random = Random(1);
    let counts: Vec<usize> = if FEW { vec![1, 67] } else { (0..=130).chain(255..=258).chain(511..=513).collect() };
    for (dtype, op) in reducible() {
        for &count in &counts {
            for inputs in if FEW { &[3][..] } else { &[1, 2, 3, 8] } {
                let outputs = 1 + random.below(3);
                let stores = if random.below(2) == 0 { Stores::Cached } else { Stores::Streaming };
                let misalignment = if random.below(2) == 0 { 8 * random.below(8) } else { random.below(64) };
                Case { dtype, op, inputs: *inputs, outputs, count, in_place: random.below(2) == 0, misalignment, stores }
                    .check(&mut random);
            }
        }
    }
}

#[test]
fn every_type_and_reduction_is_correct_at_large_counts() {
    let mut random = Random(2);
    for (dtype, op) in reducible() {
        for count in if FEW { &[70][..] } else { &[1023, 1024, 1025, 4095, 4096, 4097] } {
            for stores in [Stores::Cached, Stores::Streaming] {
                let (inputs, misalignment) = (2 + random.below(2), 8 * random.below(8));
                Case { dtype, op, inputs, outputs: 2, count: *count, in_place: false, misalignment, stores }.check(&mut random);
            }
        }
    }
}

#[test]
fn average_of_hundreds_of_inputs_is_exact() {
    let mut random = Random(3);
    for (dtype, op) in reducible().filter(|&(_, op)| matches!(op, ReduceOp::Avg | ReduceOp::Sum)) {
        for inputs in if FEW { &[5][..] } else { &[5, 7, 127, 128, 129, 255, 256, 257, 300] } {
            Case { dtype, op, inputs: *inputs, outputs: 1, count: 70, in_place: false, misalignment: 1, stores: Stores::Cached }
                .check(&mut random);
        }
    }
}

#[test]
fn min_and_max_ignore_nans_and_order_minus_zero_below_zero() {
    let zeros = |a: f32, b: f32| [(a.to_le_bytes().to_vec(), 0), (b.to_le_bytes().to_vec(), 0)];
    for (op, a, b, expected) in [
        (ReduceOp::Min, 0.0, -0.0, -0.0f32),
        (ReduceOp::Min, -0.0, 0.0, -0.0),
        (ReduceOp::Max, 0.0, -0.0, 0.0),
        (ReduceOp::Max, -0.0, 0.0, 0.0),
        (ReduceOp::Min, f32::NAN, 3.0, 3.0),
        (ReduceOp::Max, 3.0, f32::NAN, 3.0),
        (ReduceOp::Max, f32::NAN, f32::NEG_INFINITY, f32::NEG_INFINITY),
    ] {
        let data = zeros(a, b);
        assert_eq!(oracle::reduce(DType::F32, op, &data), expected.to_le_bytes(), "the reference is wrong");
        Case { dtype: DType::F32, op, inputs: 2, outputs: 1, count: 1, in_place: false, misalignment: 0, stores: Stores::Cached }
            .check_data(&data);
    }
}

#[test]
fn sum_of_16_bit_floats_is_rounded_only_once() {
    // In binary16, the sum 2048 + 1 + 1 is 2048 if it is rounded at each step, and 2050 if it is
    // rounded once.
    let data: Vec<_> = [2048.0, 1.0, 1.0].map(|x| (f16::from_f32(x).to_le_bytes().to_vec(), 0)).to_vec();
    assert_eq!(oracle::reduce(DType::F16, ReduceOp::Sum, &data), f16::from_f32(2050.0).to_le_bytes());
    let case = Case {
        dtype: DType::F16,
        op: ReduceOp::Sum,
        inputs: 3,
        outputs: 1,
        count: 1,
        in_place: false,
        misalignment: 0,
        stores: Stores::Cached,
    };
    case.check_data(&data);
}

#[test]
fn every_16_bit_float_round_trips_through_f32() {
    let all: Vec<u8> = (0..=u16::MAX).step_by(if FEW { 1021 } else { 1 }).flat_map(u16::to_le_bytes).collect();
    for dtype in [DType::F16, DType::BF16] {
        let count = all.len() / 2;
        let case = Case {
            dtype,
            op: ReduceOp::Sum,
            inputs: 1,
            outputs: 1,
            count,
            in_place: false,
            misalignment: 0,
            stores: Stores::Cached,
        };
        case.check_data(&[(all.clone(), 0)]);
    }
}

#[test]
fn conversion_to_16_bits_rounds_to_nearest_even() {
    use super::super::float16::{narrow, narrow_bf16, widen, widen_bf16};
    let (step, high_step) = if FEW { (100_000_007, 2039) } else { (509, 1) };
    let high = || (0..=u16::MAX).step_by(high_step);
    let near_ties =
        high().flat_map(|high| [0x0fff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001].map(|low| u32::from(high) << 16 | low));
    for bits in (0..=u32::MAX).step_by(step).chain(near_ties) {
        let value = f32::from_bits(bits);
        if !value.is_nan() {
            assert_eq!(narrow(value), f16::from_f32(value).to_bits(), "{bits:#x}");
            assert_eq!(narrow_bf16(value), bf16::from_f32(value).to_bits(), "{bits:#x}");
        }
    }
    for bits in high() {
        if !f16::from_bits(bits).is_nan() {
            assert_eq!(widen(bits).to_bits(), f16::from_bits(bits).to_f32().to_bits(), "{bits:#x}");
        }
        assert_eq!(widen_bf16(bits).to_bits(), u32::from(bits) << 16);
    }
}

#[test]
#[should_panic(expected = "with 0 inputs")]
fn reduction_without_inputs_panics() {
    // SAFETY: no memory is accessed.
    unsafe { reduce_on(Isa::best(), DType::F32, ReduceOp::Sum, &[], &[], 1, Stores::Cached) };
}

#[test]
#[should_panic(expected = "and of float")]
fn bitwise_reduction_of_floats_panics() {
    let input = Input { at: std::ptr::null(), scalar: 0 };
    // SAFETY: no memory is accessed.
    unsafe { reduce_on(Isa::best(), DType::F32, ReduceOp::And, &[input], &[], 0, Stores::Cached) };
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if FEW { 4 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reduction_with_random_parameters_equals_the_reference(
        pair in 0usize..100, inputs in 1usize..12, outputs in 1usize..12, count in 0usize..700,
        in_place: bool, misalignment in 0usize..64, streaming: bool, seed in 1u64..,
    ) {
        let pairs: Vec<_> = reducible().collect();
        let (dtype, op) = pairs[pair % pairs.len()];
        let stores = if streaming { Stores::Streaming } else { Stores::Cached };
        let count = if FEW { count % 80 } else { count };
        Case { dtype, op, inputs, outputs, count, in_place, misalignment, stores }.check(&mut Random(seed));
    }

    #[test]
    fn division_by_a_fixed_count_equals_integer_division(dividend: u64, shift in 0u32..64, count in 1u64.., count_shift in 0u32..64) {
        use super::super::number::Number;
        let (dividend, count) = (dividend >> shift, (count >> count_shift).max(1));
        prop_assert_eq!(dividend.over(u64::divisor(count as usize)), dividend / count);
        prop_assert_eq!((dividend as i64).over(i64::divisor(count as usize)), (i128::from(dividend as i64) / i128::from(count)) as i64);
        let (dividend, count) = (dividend as u32, (count as u32).max(1));
        prop_assert_eq!(dividend.over(u32::divisor(count as usize)), dividend / count);
        prop_assert_eq!((dividend as i32).over(i32::divisor(count as usize)), (i64::from(dividend as i32) / i64::from(count)) as i32);
    }
}
