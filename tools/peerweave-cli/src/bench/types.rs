//! Maps the code of an element type to the type.

/// Evaluates an expression with `$T` as the element type of that code.
macro_rules! with_element_type {
    ($dtype:expr, $T:ident => $call:expr) => {
        with_element_type!($dtype, $T => $call;
            I8 i8, U8 u8, I32 i32, U32 u32, I64 i64, U64 u64, F16 ::peerweave_types::f16, BF16 ::peerweave_types::bf16,
            F32 f32, F64 f64, F8E4M3 ::peerweave_types::F8E4M3, F8E5M2 ::peerweave_types::F8E5M2)
    };
    ($dtype:expr, $T:ident => $call:expr; $($number:ident $t:ty),*) => {
        match $dtype {
            $(::peerweave_types::DType::$number => {
                type $T = $t;
                $call
            })*
            other => unreachable!("bench does not support {other}; add it to `with_element_type`"),
        }
    };
}
pub(crate) use with_element_type;
