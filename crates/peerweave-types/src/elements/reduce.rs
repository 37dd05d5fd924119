//! Defines [`ReduceOp`]: a reduction operation, such as sum or maximum, as a run-time value.

use crate::DType;
use core::fmt;

/// A reduction operation as a run-time value. A collective combines the elements of all PEs in a
/// team by this operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum, which is the default.
    #[default]
    Sum = 0,
    /// The product.
    Prod = 1,
    /// The minimum.
    Min = 2,
    /// The maximum.
    Max = 3,
    /// The sum divided by the number of PEs in the team. For integers, the quotient is rounded
    /// toward zero.
    Avg = 4,
    /// A sum of products. Each PE passes a scalar and multiplies its own elements by the scalar.
    /// The products of all PEs are then added.
    PreMulSum = 5,
    /// Bitwise and, which is defined only for integers.
    And = 6,
    /// Bitwise or, which is defined only for integers.
    Or = 7,
    /// Bitwise exclusive or, which is defined only for integers.
    Xor = 8,
}

impl ReduceOp {
    /// All reductions, in the order of their `as u8` values.
    pub const ALL: [Self; 9] =
        [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::Avg, Self::PreMulSum, Self::And, Self::Or, Self::Xor];

    /// Returns a short name of the reduction, such as `sum`. The names are those of nccl-tests,
    /// except the names of the bitwise reductions, which nccl-tests lacks.
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

    /// Returns the reduction whose `as u8` value is `number`. Returns `None` if no reduction has
    /// this value.
    pub const fn from_u8(number: u8) -> Option<Self> {
        if (number as usize) < Self::ALL.len() { Some(Self::ALL[number as usize]) } else { None }
    }

    /// Returns whether the reduction is bitwise, and therefore defined only for integers.
    pub const fn is_bitwise(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Xor)
    }

    /// Returns whether the reduction is defined for elements of type `dtype`.
    pub const fn accepts(self, dtype: DType) -> bool {
        dtype.is_reducible() && (dtype.is_integer() || !self.is_bitwise())
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
