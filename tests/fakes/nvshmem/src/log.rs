//! The log of calls: one line per call with all its arguments and its result, and what ends the
//! process.
//!
//! Not in this module: what tests read from it.

use peerweave_fake_common::{Log, call_line};

use crate::call::Arguments;

static LOG: Log = Log::new(|| crate::settings::get().log.clone());

/// Writes a line after the process's number.
pub(crate) fn line(text: &str) {
    LOG.line(text);
}

/// Writes a call: `process function(name=value, ...) = result`.
pub(crate) fn call(function: &str, arguments: Arguments<'_>, result: &str) {
    let shown = arguments.iter().map(|(name, argument)| {
        let mut value = String::new();
        argument.show(&mut value);
        (*name, value)
    });
    line(&call_line(function, shown, result));
}

/// Prints to standard error.
pub(crate) fn complain(text: &str) {
    eprintln!("fake nvshmem: {text}");
}

/// Ends the process for a call that is undefined in NVSHMEM, or for which NVSHMEM ends the process.
pub(crate) fn undefined(text: &str) -> ! {
    complain(text);
    line(&format!("abort {text}"));
    std::process::abort();
}
