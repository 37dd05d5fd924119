//! Run-time names of reductions.

use crate::DType;
use core::fmt;

/// A reduction as a run-time value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum; the default.
    #[default]
    Sum = 0,
    /// The product.
    Prod = 1,
    /// The minimum.
    Min = 2,
    /// The maximum.
    Max = 3,
    /// The sum divided by the number of PEs of the team; for integers rounded toward zero.
    Avg = 4,
    /// The sum of each PE's elements times the scalar of that PE.
    PreMulSum = 5,
    /// Bitwise and; integers only.
    And = 6,
    /// Bitwise or; integers only.
    Or = 7,
    /// Bitwise exclusive or; integers only.
    Xor = 8,
}

impl ReduceOp {
    /// Every reduction.
    pub const ALL: [Self; 9] =
        [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::Avg, Self::PreMulSum, Self::And, Self::Or, Self::Xor];

    /// Returns the name used by nccl-tests, which has no bitwise reductions.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::PreMulSum => "mulsum",
            Self::And => "and",
            Self::Or => "or",
            Self::Xor => "xor",
        }
    }

    /// Returns the reduction with this number, the inverse of `self as u8`.
    pub const fn from_u8(number: u8) -> Option<Self> {
        if (number as usize) < Self::ALL.len() { Some(Self::ALL[number as usize]) } else { None }
    }

    /// Returns whether the reduction is defined only for integers.
    pub const fn is_bitwise(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Xor)
    }

    /// Returns whether the reduction is defined for elements of this type.
    pub const fn accepts(self, dtype: DType) -> bool {
        dtype.is_reducible() && (dtype.is_integer() || !self.is_bitwise())
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
