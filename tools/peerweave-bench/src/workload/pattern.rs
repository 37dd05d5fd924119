//! Inputs with exact results, and the expected results.
//!
//! The value of an element depends on the PE, the round, the type, the reduction, and its index
//! modulo a prime, [`PERIOD`]. So a tile of `PERIOD` elements defines the whole input, and filling
//! and comparing cost no more than a copy. Elements at a wrong position are detected: the distance
//! from the right position is usually a multiple of a power of two or of an element count, but not
//! of the prime.
//!
//! Invariant: a result depends neither on the order of the reduction nor on intermediate rounding.
//! Inputs of floats are small integers (for products, small factors and powers of two), so that
//! every intermediate result is representable. There is one exception: with more than 256 PEs for
//! bf16, or 2048 PEs for f16, an intermediate sum may be too large for the 16-bit type to represent
//! exactly. Then results are exact only because Peerweave accumulates in f32, as its documentation
//! guarantees. Sums and products of integers wrap.

use half::{bf16, f16};
use peerweave_types::{DType, Element, F8E4M3, F8E5M2, ReduceOp};

use super::geometry::Tile;

/// Number of elements after which inputs repeat; a prime.
pub const PERIOD: usize = 4093;

/// Value that the operation `g` must return. The memory of PE 1 contains this value before the
/// first call.
pub const G_DUE: u64 = 0x0123_4567_89ab_cdef;

/// An element type whose bits can be set and read.
pub trait Sample: Element + Default {
    /// Returns the element whose bits are the low bits of `bits`.
    fn from_bits64(bits: u64) -> Self;
    /// Returns the bits of the element, zero-extended.
    fn bits64(self) -> u64;
}

macro_rules! integer_samples {
    ($($t:ty as $unsigned:ty),*) => {$(
        impl Sample for $t {
            fn from_bits64(bits: u64) -> Self {
                bits as $t
            }
            fn bits64(self) -> u64 {
                self as $unsigned as u64
            }
        }
    )*};
}

macro_rules! float_samples {
    ($($t:ty as $bits:ty),*) => {$(
        impl Sample for $t {
            fn from_bits64(bits: u64) -> Self {
                Self::from_bits(bits as $bits)
            }
            fn bits64(self) -> u64 {
                u64::from(self.to_bits())
            }
        }
    )*};
}

integer_samples!(i8 as u8, u8 as u8, i16 as u16, u16 as u16, i32 as u32, u32 as u32, i64 as u64, u64 as u64);
float_samples!(f16 as u16, bf16 as u16, f32 as u32, f64 as u64, F8E4M3 as u8, F8E5M2 as u8);

/// Returns the scalar of a rank for `mulsum`, as in nccl-tests: 1 on even ranks, 2 on odd ranks.
pub fn scalar<T: Sample>(rank: usize) -> T {
    T::from_bits64(encode(T::DTYPE, Value::Whole(1 + (rank % 2) as i64)))
}

/// Returns the elements of the sequence `of`, such as the input of a rank, in round `round`. The
/// operation has `n_pes` ranks. The result has [`PERIOD`] elements, or twice as many for
/// [`Tile::EveryOther`].
pub fn tile<T: Sample>(of: Tile, redop: Option<ReduceOp>, n_pes: usize, round: u64) -> Vec<T> {
    match (of, redop) {
        (Tile::Input(rank), None) => moved_tile(rank, round),
        (Tile::EveryOther(rank), _) => {
            let input = moved_tile(rank, round);
            (0..2 * PERIOD).map(|i| if i % 2 == 0 { input[i % PERIOD] } else { poison() }).collect()
        }
        (Tile::Input(rank), Some(redop)) => input_tile(redop, n_pes, rank, round),
        (Tile::Reduced, Some(redop)) => reduced_tile(redop, n_pes, n_pes, round),
        (Tile::Prefix(ranks), Some(redop)) => reduced_tile(redop, n_pes, ranks, round),
        (Tile::Reduced | Tile::Prefix(_), None) => {
            unreachable!("peerweave bug: a reduced result was requested for an operation that does not reduce")
        }
    }
}

/// Returns the input of `rank` in round `round`, for an operation that only moves elements.
pub fn moved_tile<T: Sample>(rank: usize, round: u64) -> Vec<T> {
    (0..PERIOD).map(|i| T::from_bits64(hash(rank as u64, round, i as u64))).collect()
}

/// Returns the input of `rank` in round `round`, for a reduction over `n_pes` ranks.
pub fn input_tile<T: Sample>(redop: ReduceOp, n_pes: usize, rank: usize, round: u64) -> Vec<T> {
    (0..PERIOD).map(|i| T::from_bits64(encode(T::DTYPE, input(T::DTYPE, redop, n_pes, rank, round, i)))).collect()
}

/// Reduces the inputs that the ranks 0 to `ranks` - 1 have in round `round`, and returns the first
/// [`PERIOD`] elements of the result. The inputs depend on `n_pes`, the number of ranks that take
/// part in the operation.
pub fn reduced_tile<T: Sample>(redop: ReduceOp, n_pes: usize, ranks: usize, round: u64) -> Vec<T> {
    (0..PERIOD)
        .map(|i| {
            let inputs = (0..ranks).map(|rank| input(T::DTYPE, redop, n_pes, rank, round, i));
            T::from_bits64(encode(T::DTYPE, reduce(T::DTYPE, redop, inputs)))
        })
        .collect()
}

/// Returns the value that marks an element as unwritten: 0xa5 in every byte. A result can have this
/// value only by chance.
pub fn poison<T: Sample>() -> T {
    T::from_bits64(0xa5a5_a5a5_a5a5_a5a5)
}

/// The value of an element before its conversion to the element type.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    /// The bits of an integer element. Element types with less than 64 bits use only the low bits.
    Bits(u64),
    /// An integer. The element type can represent it exactly.
    Whole(i64),
    /// A number that need not be an integer. The element type is a float.
    Float(f64),
}

/// Returns `value` as an element of the float type `T`, which must represent the value exactly.
pub fn float<T: Sample>(value: f64) -> T {
    T::from_bits64(encode(T::DTYPE, Value::Float(value)))
}

fn encode(dtype: DType, value: Value) -> u64 {
    let float = match value {
        Value::Bits(bits) => return bits,
        Value::Whole(whole) if dtype.is_integer() => return whole as u64,
        Value::Whole(whole) => whole as f64,
        Value::Float(float) => float,
    };
    match dtype {
        DType::F16 => u64::from(f16::from_f64(float).to_bits()),
        DType::BF16 => u64::from(bf16::from_f64(float).to_bits()),
        DType::F32 => u64::from((float as f32).to_bits()),
        DType::F64 => float.to_bits(),
        _ => unreachable!("peerweave bug: a reduction was requested for {dtype}, but this type has no reductions"),
    }
}

/// Returns an upper limit for integer values in the checks. The type represents every integer from
/// 0 to the limit exactly. Where a sum must be exact, the inputs are so small that the sum stays
/// within the limit.
fn whole_limit(dtype: DType) -> i64 {
    match dtype {
        DType::I8 => i8::MAX.into(),
        DType::U8 => u8::MAX.into(),
        DType::I16 => i16::MAX.into(),
        DType::U16 => u16::MAX.into(),
        DType::F16 => 1 << 11,
        DType::BF16 => 1 << 8,
        DType::F32 => 1 << 24,
        DType::F64 => 1 << 53,
        _ => 1 << 30,
    }
}

fn signed(dtype: DType) -> bool {
    !matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64)
}

/// Returns one element of the input of one rank.
fn input(dtype: DType, redop: ReduceOp, n_pes: usize, rank: usize, round: u64, i: usize) -> Value {
    let random = hash(rank as u64, round, i as u64);
    let n = n_pes as i64;
    // Assigns ranks to elements in rotation, so that each rank contributes the special value of
    // some elements.
    let turn = (rank + i) % n_pes;
    match redop {
        ReduceOp::Prod if !dtype.is_integer() => {
            // A product of three factors 3 and at most eight factors 2 is exact with 8 bits of
            // mantissa and 5 bits of exponent, in any order.
            let sign = if random & 1 == 0 { 1.0 } else { -1.0 };
            let factor = match turn {
                0..3 => [1.0, 3.0, 1.5][(random >> 1) as usize % 3],
                3..9 => [1.0, 2.0, 0.5][(random >> 1) as usize % 3],
                _ => 1.0,
            };
            Value::Float(sign * factor)
        }
        // Factors are odd, so that the product does not become 0.
        ReduceOp::Prod => Value::Bits(random | 1),
        ReduceOp::Min | ReduceOp::Max if !dtype.is_integer() => Value::Whole(within(random, whole_limit(dtype), true)),
        ReduceOp::Avg => {
            // Alternating q + e and q - e add up to n * q, so that the average is exact.
            let most = (whole_limit(dtype) / n).max(1);
            let q_most = (most / 2).max(1);
            let q = within(hash(u64::MAX, round, i as u64), q_most, signed(dtype));
            let e_most = if signed(dtype) { most - q_most } else { q.min(most - q_most) };
            let e = within(hash(u64::MAX - 1, round, i as u64), e_most, false);
            match () {
                // With more PEs than the largest value of the type, only some PEs have a nonzero
                // value.
                () if dtype.is_integer() && n > whole_limit(dtype) => Value::Whole(i64::from(turn < 100)),
                () if n % 2 == 1 && turn == n_pes - 1 => Value::Whole(q),
                () if turn.is_multiple_of(2) => Value::Whole(q + e),
                () => Value::Whole(q - e),
            }
        }
        ReduceOp::Sum | ReduceOp::PreMulSum if !dtype.is_integer() => {
            let share = if redop == ReduceOp::PreMulSum { 2 * n } else { n };
            Value::Whole(within(random, (whole_limit(dtype) / share).max(1), true))
        }
        _ => Value::Bits(random),
    }
}

/// Maps the random number `random` to an integer from 0 to `most`, or from `-most` to `most` if
/// `negative_too` is true.
fn within(random: u64, most: i64, negative_too: bool) -> i64 {
    if negative_too { (random % (2 * most as u64 + 1)) as i64 - most } else { (random % (most as u64 + 1)) as i64 }
}

fn reduce(dtype: DType, redop: ReduceOp, inputs: impl Iterator<Item = Value>) -> Value {
    let values: Vec<Value> = inputs.collect();
    if dtype.is_integer() {
        let words: Vec<u64> = values.iter().map(|value| encode(dtype, *value)).collect();
        return reduce_integers(dtype, redop, &words);
    }
    let floats = values.iter().enumerate().map(|(rank, value)| {
        let float = match *value {
            Value::Whole(whole) => whole as f64,
            Value::Float(float) => float,
            Value::Bits(_) => unreachable!("peerweave bug: the input of a float type is Value::Bits, expected Whole or Float"),
        };
        if redop == ReduceOp::PreMulSum { float * (1 + rank % 2) as f64 } else { float }
    });
    Value::Float(match redop {
        ReduceOp::Prod => floats.product(),
        ReduceOp::Min => floats.fold(f64::INFINITY, f64::min),
        ReduceOp::Max => floats.fold(f64::NEG_INFINITY, f64::max),
        // `Iterator::sum` starts with -0.0, which would be the result without PEs.
        ReduceOp::Avg => floats.fold(0.0, |sum, float| sum + float) / values.len() as f64,
        _ => floats.fold(0.0, |sum, float| sum + float),
    })
}

fn reduce_integers(dtype: DType, redop: ReduceOp, words: &[u64]) -> Value {
    let bits = 8 * dtype.size_bytes() as u32;
    // The number that the low bits represent.
    let number = |word: u64| -> i128 {
        let low = word << (64 - bits);
        if signed(dtype) { i128::from((low as i64) >> (64 - bits)) } else { i128::from(low >> (64 - bits)) }
    };
    let numbers = words.iter().map(|word| number(*word));
    let wrapped = |number: i128| number as u64;
    Value::Bits(match redop {
        ReduceOp::Sum => words.iter().fold(0, |sum, word| sum.wrapping_add(*word)),
        ReduceOp::Prod => words.iter().fold(1, |product, word| product.wrapping_mul(*word)),
        ReduceOp::Min => wrapped(numbers.min().unwrap_or(0)),
        ReduceOp::Max => wrapped(numbers.max().unwrap_or(0)),
        // Rust rounds toward zero, as documented for averages.
        ReduceOp::Avg => wrapped(number(wrapped(numbers.sum())) / words.len().max(1) as i128),
        ReduceOp::PreMulSum => {
            words.iter().enumerate().fold(0, |sum, (rank, word)| sum.wrapping_add(word.wrapping_mul(1 + rank as u64 % 2)))
        }
        ReduceOp::And => words.iter().fold(u64::MAX, |all, word| all & word),
        ReduceOp::Or => words.iter().fold(0, |any, word| any | word),
        ReduceOp::Xor => words.iter().fold(0, |odd, word| odd ^ word),
        _ => unreachable!("bench does not support {redop}; add it to `reduce_integers`"),
    })
}

/// Hashes three numbers (the finaliser of splitmix64, twice).
pub fn hash(a: u64, b: u64, c: u64) -> u64 {
    let mix = |x: u64| {
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    mix(mix(a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.rotate_left(32)).wrapping_add(c.wrapping_mul(0xd1b5_4a32_d192_ed03)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reduces the elements that `n` ranks have at index `i` of their inputs in round `round`.
    /// `order` lists the ranks in the order of the reduction. Computes each step in f64, and rounds
    /// the result of the step to the element type. Returns the bits of the last result.
    fn step_by_step(dtype: DType, redop: ReduceOp, n: usize, order: &[usize], round: u64, i: usize) -> u64 {
        let round_to_type = |float: f64| match dtype {
            DType::F16 => f16::from_f64(float).to_f64(),
            DType::BF16 => bf16::from_f64(float).to_f64(),
            DType::F32 => f64::from(float as f32),
            _ => float,
        };
        let mut acc = None;
        for &rank in order {
            let mut x = match input(dtype, redop, n, rank, round, i) {
                Value::Whole(whole) => whole as f64,
                Value::Float(float) => float,
                Value::Bits(_) => panic!("inputs of floats are numbers, not bits of an integer"),
            };
            assert_eq!(round_to_type(x), x, "{dtype} {redop}: an input that the type cannot represent");
            if redop == ReduceOp::PreMulSum {
                x *= (1 + rank % 2) as f64;
            }
            acc = Some(match (acc, redop) {
                (None, _) => x,
                (Some(acc), ReduceOp::Prod) => round_to_type(acc * x),
                (Some(acc), ReduceOp::Min) => f64::min(acc, x),
                (Some(acc), ReduceOp::Max) => f64::max(acc, x),
                (Some(acc), _) => round_to_type(acc + x),
            });
        }
        let acc = acc.unwrap();
        encode(dtype, Value::Float(if redop == ReduceOp::Avg { acc / n as f64 } else { acc }))
    }

    #[test]
    fn float_results_are_exact_in_every_reduction_order() {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            for redop in ReduceOp::ALL.into_iter().filter(|redop| redop.accepts(dtype)) {
                for n in [1, 2, 3, 5, 8, 12, 64, 100] {
                    let forward: Vec<_> = (0..n).collect();
                    let backward: Vec<_> = (0..n).rev().collect();
                    let mixed: Vec<_> = (0..n).map(|rank| (rank * 7 + 3) % n).collect();
                    for i in (0..PERIOD).step_by(if n > 12 { 37 } else { 5 }) {
                        let due = encode(dtype, reduce(dtype, redop, (0..n).map(|rank| input(dtype, redop, n, rank, 3, i))));
                        for order in [&forward, &backward, &mixed] {
                            if order == &mixed && n % 7 == 0 {
                                continue;
                            }
                            assert_eq!(step_by_step(dtype, redop, n, order, 3, i), due, "{dtype} {redop}, {n} PEs, element {i}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn averages_are_exact_and_do_not_overflow() {
        for dtype in [DType::I8, DType::U8, DType::I32, DType::U64, DType::BF16] {
            for n in [1usize, 2, 3, 7, 8, 100] {
                for i in 0..PERIOD {
                    let whole = |rank| match input(dtype, ReduceOp::Avg, n, rank, 1, i) {
                        Value::Whole(whole) => whole,
                        other => panic!("{other:?}"),
                    };
                    let sum: i64 = (0..n).map(whole).sum();
                    assert!(sum.abs() <= whole_limit(dtype), "{dtype}, {n} PEs: {sum}");
                    assert!(signed(dtype) || (0..n).all(|rank| whole(rank) >= 0), "{dtype}, {n} PEs, element {i}");
                    assert_eq!(sum % n as i64, 0, "{dtype}, {n} PEs, element {i}");
                }
            }
        }
    }

    #[test]
    fn integer_reductions_follow_the_signedness_of_the_type() {
        let reduce = |dtype, redop, words: &[u64]| {
            let Value::Bits(bits) = reduce_integers(dtype, redop, words) else { panic!() };
            bits
        };
        assert_eq!(reduce(DType::I8, ReduceOp::Sum, &[0x7f, 1]) as i8, i8::MIN);
        assert_eq!(reduce(DType::I8, ReduceOp::Min, &[0x80, 1]) as i8, -128);
        assert_eq!(reduce(DType::U8, ReduceOp::Min, &[0x80, 1]) as u8, 1);
        assert_eq!(reduce(DType::I8, ReduceOp::Max, &[0x80, 1]) as i8, 1);
        assert_eq!(reduce(DType::I32, ReduceOp::Avg, &[(-3i32) as u64, (-4i32) as u64]) as i32, -3, "rounded toward zero");
        assert_eq!(reduce(DType::U64, ReduceOp::Prod, &[u64::MAX, 3]), u64::MAX.wrapping_mul(3));
        assert_eq!(reduce(DType::I32, ReduceOp::PreMulSum, &[5, 7]) as i32, 19);
        assert_eq!(reduce(DType::U8, ReduceOp::Xor, &[0b1100, 0b1010]), 0b0110);
        assert_eq!(reduce(DType::U8, ReduceOp::And, &[0b1100, 0b1010]), 0b1000);
        assert_eq!(reduce(DType::U8, ReduceOp::Or, &[0b1100, 0b1010]), 0b1110);
    }

    #[test]
    fn inputs_differ_between_ranks_rounds_and_elements() {
        let tile = |rank, round| input_tile::<f32>(ReduceOp::Sum, 4, rank, round);
        let same = |a: &[f32], b: &[f32]| a.iter().zip(b).filter(|(a, b)| a == b).count();
        assert!(same(&tile(0, 0), &tile(1, 0)) < PERIOD / 50);
        assert!(same(&tile(0, 0), &tile(0, 1)) < PERIOD / 50);
        assert!(same(&tile(0, 0)[1..], &tile(0, 0)) < PERIOD / 50);
        assert_ne!(moved_tile::<F8E5M2>(0, 0), moved_tile::<F8E5M2>(1, 0));
    }

    #[test]
    fn reduction_result_has_at_least_6_distinct_values() {
        fn varied<T: Sample>() {
            for redop in ReduceOp::ALL.into_iter().filter(|redop| redop.accepts(T::DTYPE)) {
                for n in [1, 2, 8] {
                    let mut bits: Vec<u64> = reduced_tile::<T>(redop, n, n, 0).into_iter().map(T::bits64).collect();
                    bits.sort_unstable();
                    bits.dedup();
                    assert!(bits.len() >= 6, "{} {redop}, {n} PEs: {} values", T::DTYPE, bits.len());
                }
            }
        }
        varied::<i8>();
        varied::<u8>();
        varied::<i64>();
        varied::<f16>();
        varied::<bf16>();
        varied::<f32>();
        varied::<f64>();
    }

    #[test]
    fn element_made_from_bits_has_the_same_bits() {
        assert_eq!(i8::from_bits64(0xfd).bits64(), 0xfd);
        assert_eq!(poison::<bf16>().bits64(), 0xa5a5);
        assert_eq!(F8E4M3::from_bits64(0x7f).bits64(), 0x7f);
        assert_eq!([scalar::<f16>(0).to_f32(), scalar::<f16>(3).to_f32()], [1.0, 2.0]);
        assert_eq!([scalar::<i8>(2), scalar::<i8>(1)], [1, 2]);
    }
}
