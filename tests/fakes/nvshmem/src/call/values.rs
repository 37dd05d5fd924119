//! Arguments and results of exported functions: their form in the log, and injected results.

use core::ffi::c_int;

use half::{bf16, f16};

use crate::abi::Code;

/// An argument or a result.
pub(crate) trait Value {
    /// Returns the text of the value in the log.
    fn text(&self) -> String;
}

/// A function's arguments with their names.
pub(crate) type Arguments<'a> = &'a [(&'static str, &'a dyn Value)];

/// The result of an exported function.
pub(crate) trait Outcome: Value {
    /// Returns an injected failure.
    fn injected(code: Code) -> Self;
}

macro_rules! values {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
values!(i8, u8, i16, u16, c_int, u32, i64, u64, isize, usize, f16, bf16, f32, f64);

macro_rules! zeros {
    ($($type:ty),*) => {$(
        impl Outcome for $type {
            fn injected(_code: Code) -> Self {
                Self::default()
            }
        }
    )*};
}
zeros!(i8, u8, i16, u16, u32, i64, u64, isize, usize, f16, bf16, f32, f64, ());

impl Outcome for c_int {
    fn injected(code: Code) -> Self {
        code.0
    }
}

impl Value for () {
    fn text(&self) -> String {
        "()".to_owned()
    }
}

impl<T> Value for *const T {
    fn text(&self) -> String {
        format!("{:#x}", self.addr())
    }
}

impl<T> Value for *mut T {
    fn text(&self) -> String {
        format!("{:#x}", self.addr())
    }
}

impl<T> Outcome for *mut T {
    fn injected(_code: Code) -> Self {
        std::ptr::null_mut()
    }
}
