//! The log of calls: one line per call with all its arguments and its result, and the message when
//! the process ends.
//!
//! Tests interpret the lines.

use peerweave_fake_common::{Log, call_line};

use super::values::Arguments;
use crate::settings;

static LOG: Log = Log::new(|| settings::get().log.clone());

/// Writes a line that begins with the process ID.
pub(crate) fn line(text: &str) {
    LOG.line(text);
}

/// Logs a call: `process function(name=value, ...) = result`.
pub(crate) fn call(function: &str, arguments: Arguments<'_>, result: &str) {
    let shown = arguments.iter().map(|(name, argument)| {
        let mut value = String::new();
        argument.show(&mut value);
        (*name, value)
    });
    line(&call_line(function, shown, result));
}

/// Prints a line to standard error.
pub(crate) fn complain(text: &str) {
    eprintln!("fake nvshmem: {text}");
}

/// Ends the process because the call is undefined in NVSHMEM, or because NVSHMEM ends the process
/// too.
pub(crate) fn undefined(text: &str) -> ! {
    complain(text);
    line(&format!("abort {text}"));
    std::process::abort();
}
