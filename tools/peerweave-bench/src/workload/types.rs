//! Maps a [`DType`] to the Rust type of its elements.

use peerweave_types::DType;

/// Evaluates `$call`, in which `$T` is the Rust type of the elements of `$dtype`. The invocation
/// lists the element types for which `$call` is compiled. Panics if `$dtype` is not in this list.
macro_rules! with_type_of {
    ($dtype:expr, $T:ident => $call:expr; $($number:ident $t:ty),*) => {
        match $dtype {
            $(::peerweave_types::DType::$number => {
                type $T = $t;
                $call
            })*
            other => unreachable!("bench does not support {other}; add it to `workload/types.rs`"),
        }
    };
}

/// Evaluates an expression in which `$T` is the element type of `$dtype`.
#[cfg(feature = "cuda")]
macro_rules! with_element_type {
    ($dtype:expr, $T:ident => $call:expr) => {
        $crate::workload::types::with_type_of!($dtype, $T => $call;
            I8 i8, U8 u8, I32 i32, U32 u32, I64 i64, U64 u64, F16 ::peerweave_types::f16, BF16 ::peerweave_types::bf16,
            F32 f32, F64 f64, F8E4M3 ::peerweave_types::F8E4M3, F8E5M2 ::peerweave_types::F8E5M2)
    };
}

/// Evaluates an expression in which `$T` is the element type of `$dtype`. Panics for types without
/// reductions (8-bit floats).
macro_rules! with_number_type {
    ($dtype:expr, $T:ident => $call:expr) => {
        $crate::workload::types::with_type_of!($dtype, $T => $call;
            I8 i8, U8 u8, I16 i16, U16 u16, I32 i32, U32 u32, I64 i64, U64 u64, F16 ::peerweave_types::f16, BF16 ::peerweave_types::bf16,
            F32 f32, F64 f64)
    };
}

/// Evaluates an expression for an operation that only moves elements. In the expression, `$T` is a
/// type of the same size as the element type of `$dtype`. For each size there is one such type
/// ([`moved_as`]), so fewer types are compiled.
macro_rules! with_moved_type {
    ($dtype:expr, $T:ident => $call:expr) => {
        $crate::workload::types::with_type_of!($crate::workload::types::moved_as($dtype), $T => $call;
            U8 u8, F16 ::peerweave_types::f16, U32 u32, U64 u64)
    };
}

/// Evaluates an expression in which `$T` is the element type of `$dtype`. Panics unless `$dtype` is
/// a float of 16 or 32 bits.
macro_rules! with_float_type {
    ($dtype:expr, $T:ident => $call:expr) => {
        $crate::workload::types::with_type_of!($dtype, $T => $call; F16 ::peerweave_types::f16, BF16 ::peerweave_types::bf16, F32 f32)
    };
}

#[cfg(feature = "cuda")]
pub(crate) use with_element_type;
pub(crate) use {with_float_type, with_moved_type, with_number_type, with_type_of};

/// Returns the type that replaces `dtype` in operations that only move elements. All types of the
/// same size have the same replacement, so fewer types are compiled.
pub(crate) fn moved_as(dtype: DType) -> DType {
    match dtype.size_bytes() {
        1 => DType::U8,
        2 => DType::F16,
        4 => DType::U32,
        _ => DType::U64,
    }
}
