//! `ncclGetErrorString` and `ncclGetLastError`.
//!
//! Module `report` keeps the texts. Invariant: a returned text stays at its address as long as the
//! process lives.

use core::ffi::{c_char, c_int};

use crate::comm::CommPtr;
use crate::report::errors;

/// Returns the text of a code.
#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(result: c_int) -> *const c_char {
    let text = match result {
        0 => c"no error",
        1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        2 => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the NCCL developers",
        4 => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        5 => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        8 => c"timeout",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// Returns the text of the process's last error; empty before the first.
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_comm: CommPtr) -> *const c_char {
    errors::last().as_ptr()
}
