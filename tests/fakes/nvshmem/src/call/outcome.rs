//! Failures of the bodies of exported functions: a code for the caller, or the end of the process.

use core::ffi::c_int;

use super::log;
use super::running::function;
use crate::abi::Result;

/// Returns the code of a body that can fail; prints the text of a failure, as NVSHMEM does.
pub(crate) fn code(body: impl FnOnce() -> Result) -> c_int {
    match body() {
        Ok(()) => 0,
        Err(failure) => {
            log::complain(&format!("{}: {} (code {})", function(), failure.text, failure.code.0));
            failure.code.0
        }
    }
}

/// Handles a failure of a function without a code: prints it, and ends the process.
pub(crate) fn or_abort<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|failure| log::undefined(&format!("{}: {} (code {})", function(), failure.text, failure.code.0)))
}
