//! The C types of the typed functions.
//!
//! Invariant: each entry has the type name in the function names, and the Rust type with the same
//! ABI.

/// The 25 types of transfers.
macro_rules! each_rma {
    ($family:ident) => {
        $crate::abi::types::each_reduce!($family);
        $family! { "ptrdiff" isize }
    };
}
pub(crate) use each_rma;

/// The 24 types of reductions.
macro_rules! each_reduce {
    ($family:ident) => {
        $family! { "bfloat16" half::bf16 }
        $family! { "half" half::f16 }
        $family! { "float" f32 }
        $family! { "double" f64 }
        $family! { "char" i8 }
        $family! { "short" i16 }
        $family! { "schar" i8 }
        $family! { "int" i32 }
        $family! { "long" i64 }
        $family! { "longlong" i64 }
        $crate::abi::types::each_bitwise!($family);
    };
}
pub(crate) use each_reduce;

/// The 14 types of bitwise reductions.
macro_rules! each_bitwise {
    ($family:ident) => {
        $family! { "uchar" u8 }
        $family! { "ushort" u16 }
        $family! { "uint" u32 }
        $family! { "ulong" u64 }
        $family! { "ulonglong" u64 }
        $family! { "int8" i8 }
        $family! { "int16" i16 }
        $family! { "int32" i32 }
        $family! { "int64" i64 }
        $family! { "uint8" u8 }
        $family! { "uint16" u16 }
        $family! { "uint32" u32 }
        $family! { "uint64" u64 }
        $family! { "size" usize }
    };
}
pub(crate) use each_bitwise;

/// The 14 types of words for waits.
macro_rules! each_wait {
    ($family:ident) => {
        $family! { "short" i16 }
        $family! { "int" i32 }
        $family! { "long" i64 }
        $family! { "longlong" i64 }
        $family! { "ushort" u16 }
        $family! { "uint" u32 }
        $family! { "ulong" u64 }
        $family! { "ulonglong" u64 }
        $family! { "int32" i32 }
        $family! { "int64" i64 }
        $family! { "uint32" u32 }
        $family! { "uint64" u64 }
        $family! { "size" usize }
        $family! { "ptrdiff" isize }
    };
}
pub(crate) use each_wait;

/// The 7 types of bitwise atomics.
macro_rules! each_atomic_bitwise {
    ($family:ident) => {
        $family! { "uint" u32 }
        $family! { "ulong" u64 }
        $family! { "ulonglong" u64 }
        $family! { "int32" i32 }
        $family! { "uint32" u32 }
        $family! { "int64" i64 }
        $family! { "uint64" u64 }
    };
}
pub(crate) use each_atomic_bitwise;

/// The 12 types of atomics.
macro_rules! each_atomic {
    ($family:ident) => {
        $crate::abi::types::each_atomic_bitwise!($family);
        $family! { "int" i32 }
        $family! { "long" i64 }
        $family! { "longlong" i64 }
        $family! { "size" usize }
        $family! { "ptrdiff" isize }
    };
}
pub(crate) use each_atomic;
