//! Defines NCCL's result codes, and the failure of a call.
//!
//! Module `report` keeps the text of a failure. Invariant: the numbers are those of NCCL 2.32's
//! header.

/// Result code of a function of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Success = 0,
    UnhandledCudaError = 1,
    SystemError = 2,
    InternalError = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
    RemoteError = 6,
    InProgress = 7,
    Timeout = 8,
}

impl Code {
    /// Returns the code with a number; `InternalError` for a number that NCCL does not define.
    pub(crate) fn from_number(number: i32) -> Self {
        use Code::*;
        [Success, UnhandledCudaError, SystemError, InternalError, InvalidArgument, InvalidUsage, RemoteError, InProgress, Timeout]
            .into_iter()
            .find(|code| *code as i32 == number)
            .unwrap_or(InternalError)
    }
}

/// The failure of a call: its code, and the text for `ncclGetLastError`.
#[derive(Clone, Debug)]
pub(crate) struct Fail {
    pub(crate) code: Code,
    pub(crate) text: String,
}

/// Result of the body of an exported function.
pub(crate) type Result<T = ()> = core::result::Result<T, Fail>;

/// Returns a failure with a text.
pub(crate) fn fail<T>(code: Code, text: impl Into<String>) -> Result<T> {
    Err(Fail { code, text: text.into() })
}

/// Returns a failure because of an invalid argument.
pub(crate) fn invalid<T>(text: impl Into<String>) -> Result<T> {
    fail(Code::InvalidArgument, text)
}

/// Returns a failure because the call is not allowed in the present state.
pub(crate) fn misuse<T>(text: impl Into<String>) -> Result<T> {
    fail(Code::InvalidUsage, text)
}

/// Returns the code of a pending operation, in a non-blocking communicator.
pub(crate) fn in_progress<T>() -> Result<T> {
    fail(Code::InProgress, String::new())
}
