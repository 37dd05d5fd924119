//! The text of the last error of the process.
//!
//! Invariant: a returned text stays at its address as long as the process lives.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::sync::{LazyLock, Mutex, PoisonError};

use super::debug;

/// Every text that was ever set, stored once; and the last text.
#[derive(Default)]
struct Texts {
    all: HashSet<&'static CStr>,
    last: Option<&'static CStr>,
}

static TEXTS: LazyLock<Mutex<Texts>> = LazyLock::new(Mutex::default);

/// Sets the text of the process's last error.
pub(crate) fn set(text: &str) {
    debug::say(debug::Level::Warn, text);
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

/// Returns the text of the last error; empty before the first.
pub(crate) fn last() -> &'static CStr {
    let texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    texts.last.unwrap_or(c"")
}
