//! Status codes, and errors with their text.
//!
//! Invariant: every failed call of the driver becomes an internal error with the name of the
//! function.

use core::ffi::c_int;

use peerweave_fake_common::driver::Broken;

/// A status other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) c_int);

impl Code {
    pub(crate) const INVALID_VALUE: Self = Self(1);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    pub(crate) const NOT_SUPPORTED: Self = Self(3);
    pub(crate) const SYMMETRY: Self = Self(4);
    pub(crate) const GPU_NOT_SELECTED: Self = Self(5);
    pub(crate) const LAUNCH_FAILED: Self = Self(6);
    pub(crate) const INTERNAL: Self = Self(7);
}

/// An error with its text.
pub(crate) struct Fail {
    pub(crate) code: Code,
    pub(crate) text: String,
}

pub(crate) type Result<T = ()> = core::result::Result<T, Fail>;

/// Returns a failure with a text.
pub(crate) fn fail<T>(code: Code, text: impl Into<String>) -> Result<T> {
    Err(Fail { code, text: text.into() })
}

/// Returns a failure because of an invalid argument.
pub(crate) fn invalid<T>(text: impl Into<String>) -> Result<T> {
    fail(Code::INVALID_VALUE, text)
}

impl From<Broken> for Fail {
    fn from(broken: Broken) -> Self {
        let text = match broken {
            Broken::Absent(name) => format!("the driver has no {name}"),
            Broken::Code(name, code) => format!("{name} failed with {code}"),
            Broken::Capture => "the stream's capture has failed".to_owned(),
        };
        Self { code: Code::INTERNAL, text }
    }
}
