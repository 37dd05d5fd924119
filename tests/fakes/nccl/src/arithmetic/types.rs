//! NCCL's types of elements.
//!
//! Module `compute` has the arithmetic of the types. Invariant: a type that the emulated version
//! lacks is refused.

use core::ffi::c_int;

use crate::abi::{Result, invalid};
use crate::settings;

/// A type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum DType {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    Bf16,
    E4m3,
    E5m2,
}

impl DType {
    /// Returns the type with NCCL's number; types that the emulated version lacks are refused.
    pub(crate) fn from_number(number: c_int) -> Result<Self> {
        use DType::*;
        let all = [I8, U8, I32, U32, I64, U64, F16, F32, F64, Bf16, E4m3, E5m2];
        let known = if settings::get().version >= 22403 { all.len() } else { 10 };
        match usize::try_from(number).ok().and_then(|number| all[..known].get(number)) {
            Some(dtype) => Ok(*dtype),
            None => invalid(format!("invalid type {number}")),
        }
    }

    /// Returns the bytes of an element.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::E4m3 | Self::E5m2 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}
