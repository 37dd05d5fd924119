//! Reductions: the types of elements, the operators, the arithmetic.
//!
//! Module `groups` chooses the contributions. Invariant: every rank computes the same bits.

pub(crate) mod compute;
mod fp8;
mod operator;
mod types;

pub(crate) use operator::{Op, Scalar, read_value};
pub(crate) use types::DType;
