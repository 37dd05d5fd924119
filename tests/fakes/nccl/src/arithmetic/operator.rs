//! Reduction operators with their parameters.
//!
//! Module `compute` applies the operators. Invariant: a factor in device memory is read only when
//! the collective runs.

use super::types::DType;

/// An operator with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
    PreMulSum(Scalar),
}

impl Op {
    /// Returns the number by which ranks check that they use the same operator. The number does not
    /// depend on the scalar, which can differ among ranks.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Sum => 0,
            Self::Prod => 1,
            Self::Max => 2,
            Self::Min => 3,
            Self::Avg => 4,
            Self::PreMulSum(_) => 5,
        }
    }
}

/// Location of the factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    /// The bytes of the factor.
    Now([u8; 8]),
    /// An address in device memory, read when the collective runs.
    Later(usize),
}

impl Scalar {
    /// Returns the factor's bytes for the running collective.
    pub(crate) fn bytes(&self, dtype: DType) -> [u8; 8] {
        match *self {
            Self::Now(bytes) => bytes,
            Self::Later(address) => read_value(std::ptr::with_exposed_provenance(address), dtype),
        }
    }
}

/// Returns the bytes of one value.
pub(crate) fn read_value(from: *const u8, dtype: DType) -> [u8; 8] {
    let mut bytes = [0; 8];
    // SAFETY: the program promises one value of the type there, and no type is longer than eight
    // bytes.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), dtype.size()) };
    bytes
}
