//! Operations that change a signal word, and comparisons with which a PE waits for a word.

use crate::DType;
use core::fmt;

/// The operation by which a signal changes a signal word, a 64-bit word in symmetric memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SignalOp {
    /// The signal stores its value in the signal word.
    Set = 0,
    /// The signal adds its value to the signal word. The sum wraps on overflow.
    Add = 1,
}

/// A comparison between a word in memory (the left operand) and a value (the right operand), for
/// `wait_until` and `test`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Compare {
    /// The word is equal to the value.
    Eq = 0,
    /// The word is not equal to the value.
    Ne = 1,
    /// The word is greater than the value.
    Gt = 2,
    /// The word is greater than or equal to the value.
    Ge = 3,
    /// The word is less than the value.
    Lt = 4,
    /// The word is less than or equal to the value.
    Le = 5,
}

impl Compare {
    /// All comparisons, in the order of their `as u32` values.
    pub const ALL: [Self; 6] = [Self::Eq, Self::Ne, Self::Gt, Self::Ge, Self::Lt, Self::Le];

    /// Returns whether `word` satisfies the comparison with `value`. Both operands are compared as
    /// unsigned numbers.
    #[inline]
    pub const fn holds(self, word: u64, value: u64) -> bool {
        match self {
            Self::Eq => word == value,
            Self::Ne => word != value,
            Self::Gt => word > value,
            Self::Ge => word >= value,
            Self::Lt => word < value,
            Self::Le => word <= value,
        }
    }

    /// Returns whether `word` satisfies the comparison with `value`. Both operands hold the bits of
    /// an element of the integer type `dtype`, zero-extended. The comparison is signed if `dtype`
    /// is signed.
    #[inline]
    pub const fn holds_as(self, dtype: DType, word: u64, value: u64) -> bool {
        let sign = Self::sign_bit(dtype);
        self.holds(word ^ sign, value ^ sign)
    }

    /// Returns a word in which only the sign bit of the integer type `dtype` is set. Returns 0 if
    /// the type is not a signed integer. To compare two signed elements, combine each with this
    /// word by exclusive or, and compare the results as unsigned numbers.
    #[inline]
    pub const fn sign_bit(dtype: DType) -> u64 {
        match dtype {
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => 1 << (8 * dtype.size_bytes() - 1),
            _ => 0,
        }
    }
}

impl fmt::Display for Compare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eq => "==",
            Self::Ne => "!=",
            Self::Gt => ">",
            Self::Ge => ">=",
            Self::Lt => "<",
            Self::Le => "<=",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_agree_with_rust_operators() {
        for (word, value) in [(0, 0), (0, 1), (1, 0), (u64::MAX, 0), (5, u64::MAX)] {
            assert_eq!(Compare::Eq.holds(word, value), word == value);
            assert_eq!(Compare::Ne.holds(word, value), word != value);
            assert_eq!(Compare::Gt.holds(word, value), word > value);
            assert_eq!(Compare::Ge.holds(word, value), word >= value);
            assert_eq!(Compare::Lt.holds(word, value), word < value);
            assert_eq!(Compare::Le.holds(word, value), word <= value);
        }
    }

    #[test]
    fn integers_compared_as_64_bit_words_keep_their_order() {
        fn check<T: crate::Integer + PartialOrd>(values: &[T]) {
            for (&a, &b) in values.iter().flat_map(|a| values.iter().map(move |b| (a, b))) {
                let holds = |compare: Compare| compare.holds_as(T::DTYPE, a.to_word(), b.to_word());
                let found = Compare::ALL.map(holds);
                assert_eq!(found, [a == b, a != b, a > b, a >= b, a < b, a <= b], "{a:?} and {b:?}");
            }
        }
        check(&[i8::MIN, -1, 0, 1, i8::MAX]);
        check(&[0, 1, u8::MAX]);
        check(&[i16::MIN, -2, -1, 0, 1, i16::MAX]);
        check(&[0, 1, u16::MAX]);
        check(&[i32::MIN, -2, -1, 0, 1, i32::MAX]);
        check(&[0, 1, u32::MAX / 2 + 1, u32::MAX]);
        check(&[i64::MIN, -2, -1, 0, 1, i64::MAX]);
        check(&[0, 1, u64::MAX / 2 + 1, u64::MAX]);
    }
}
