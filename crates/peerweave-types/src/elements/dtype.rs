//! Element types as run-time values.

use core::fmt;

/// The type of an element as a run-time value. The calls of backends take a `DType`, because
/// backends are not generic over element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum DType {
    /// Signed 8-bit integer.
    I8 = 0,
    /// Unsigned 8-bit integer.
    U8 = 1,
    /// Signed 32-bit integer.
    I32 = 2,
    /// Unsigned 32-bit integer.
    U32 = 3,
    /// Signed 64-bit integer.
    I64 = 4,
    /// Unsigned 64-bit integer.
    U64 = 5,
    /// IEEE 754 binary16. Reductions accumulate in `f32`.
    F16 = 6,
    /// bfloat16. Reductions accumulate in `f32`.
    BF16 = 7,
    /// IEEE 754 binary32.
    F32 = 8,
    /// IEEE 754 binary64.
    F64 = 9,
    /// 8-bit float with 4 exponent bits. Reductions are not defined.
    F8E4M3 = 10,
    /// 8-bit float with 5 exponent bits. Reductions are not defined.
    F8E5M2 = 11,
    /// Signed 16-bit integer. NCCL has no 16-bit integers.
    I16 = 12,
    /// Unsigned 16-bit integer. NCCL has no 16-bit integers.
    U16 = 13,
}

impl DType {
    /// All element types, in the order of their `as u8` values.
    pub const ALL: [Self; 14] = [
        Self::I8,
        Self::U8,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::I16,
        Self::U16,
    ];

    /// Returns the size of one element, in bytes.
    #[inline]
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Returns the name of the type in nccl-tests. A type that nccl-tests lacks has a similar name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::I8 => "int8",
            Self::U8 => "uint8",
            Self::I32 => "int32",
            Self::U32 => "uint32",
            Self::I64 => "int64",
            Self::U64 => "uint64",
            Self::F16 => "half",
            Self::BF16 => "bfloat16",
            Self::F32 => "float",
            Self::F64 => "double",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
            Self::I16 => "int16",
            Self::U16 => "uint16",
        }
    }

    /// Returns the name of the Rust type, for error messages: for example, `f32` and not `float`.
    ///
    /// ```
    /// assert_eq!(peerweave_types::DType::F32.rust_name(), "f32");
    /// ```
    pub const fn rust_name(self) -> &'static str {
        match self {
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F8E4M3 => "F8E4M3",
            Self::F8E5M2 => "F8E5M2",
            Self::I16 => "i16",
            Self::U16 => "u16",
        }
    }

    /// Returns the element type whose `as u8` value is `number`. Returns `None` if no type has this
    /// value.
    pub const fn from_u8(number: u8) -> Option<Self> {
        if (number as usize) < Self::ALL.len() { Some(Self::ALL[number as usize]) } else { None }
    }

    /// Returns whether this is an integer type. Bitwise reductions are defined only for integers.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::I8 | Self::U8 | Self::I16 | Self::U16 | Self::I32 | Self::U32 | Self::I64 | Self::U64)
    }

    /// Returns whether reductions are defined for this type: true except for 8-bit floats.
    pub const fn is_reducible(self) -> bool {
        !matches!(self, Self::F8E4M3 | Self::F8E5M2)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
