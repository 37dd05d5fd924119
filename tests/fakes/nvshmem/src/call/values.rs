//! Arguments and results of exported functions: their form in the log, and injected results.

use core::ffi::c_int;
use std::fmt::Write as _;

use half::{bf16, f16};

use crate::abi::error::Code;

/// The form of an argument in the log.
pub(crate) trait Argument {
    /// Adds the argument to a line of the log.
    fn show(&self, line: &mut String);
}

/// A function's arguments with their names.
pub(crate) type Arguments<'a> = &'a [(&'static str, &'a dyn Argument)];

/// The result of an exported function.
pub(crate) trait Outcome {
    /// Returns an injected failure.
    fn injected(code: Code) -> Self;
    /// Returns its form in the log.
    fn text(&self) -> String;
}

macro_rules! values {
    ($($type:ty = $zero:expr),*) => {$(
        impl Argument for $type {
            fn show(&self, line: &mut String) {
                let _ = write!(line, "{self}");
            }
        }
        impl Outcome for $type {
            fn injected(_code: Code) -> Self {
                $zero
            }
            fn text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
values!(i8 = 0, u8 = 0, i16 = 0, u16 = 0, u32 = 0, i64 = 0, u64 = 0, isize = 0, usize = 0, f32 = 0.0, f64 = 0.0);
values!(f16 = f16::ZERO, bf16 = bf16::ZERO);

impl Argument for c_int {
    fn show(&self, line: &mut String) {
        let _ = write!(line, "{self}");
    }
}

impl Outcome for c_int {
    fn injected(code: Code) -> Self {
        code.0
    }
    fn text(&self) -> String {
        self.to_string()
    }
}

impl Outcome for () {
    fn injected(_code: Code) {}
    fn text(&self) -> String {
        "()".to_owned()
    }
}

impl<T> Argument for *const T {
    fn show(&self, line: &mut String) {
        let _ = write!(line, "{:#x}", self.addr());
    }
}

impl<T> Argument for *mut T {
    fn show(&self, line: &mut String) {
        let _ = write!(line, "{:#x}", self.addr());
    }
}

impl<T> Outcome for *mut T {
    fn injected(_code: Code) -> Self {
        std::ptr::null_mut()
    }
    fn text(&self) -> String {
        format!("{:#x}", self.addr())
    }
}
