//! `ncclGetErrorString` and `ncclGetLastError`.
//!
//! Invariant: a returned text stays at its address as long as the process lives.

use core::ffi::{c_char, c_int};
use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::comm::CommPtr;

/// Every text that was ever set, stored once; and the last one.
#[derive(Default)]
struct Texts {
    all: HashSet<&'static CStr>,
    last: Option<&'static CStr>,
}

static TEXTS: LazyLock<Mutex<Texts>> = LazyLock::new(Mutex::default);

/// Sets the text of the process's last error.
pub(crate) fn set(text: &str) {
    crate::debug::say(crate::debug::Level::Warn, text);
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = match texts.all.get(text.as_c_str()) {
        Some(kept) => kept,
        None => {
            let kept: &'static CStr = Box::leak(text.into_boxed_c_str());
            texts.all.insert(kept);
            kept
        }
    };
    texts.last = Some(kept);
}

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
    let texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    texts.last.unwrap_or(c"").as_ptr()
}
