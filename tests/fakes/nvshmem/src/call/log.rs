//! The log of calls: one line per call with all its arguments and its result, and a line with the
//! message if a fault ends the process.
//!
//! Tests parse the lines.

use peerweave_fake_common::{Log, call_line};

use super::values::Arguments;
use crate::settings;

static LOG: Log = Log::new(|| settings::get().log.clone());

/// Logs a call: `process function(name=value, ...) = result`.
pub(super) fn call(function: &str, arguments: Arguments<'_>, result: &str) {
    let shown = arguments.iter().map(|(name, argument)| (*name, argument.text()));
    LOG.line(&call_line(function, shown, result));
}

/// Prints a line to standard error.
pub(crate) fn complain(text: &str) {
    eprintln!("fake nvshmem: {text}");
}

/// Ends the process with a message, because the call is undefined in NVSHMEM, or because NVSHMEM
/// ends the process too.
pub(crate) fn undefined(text: &str) -> ! {
    complain(text);
    LOG.line(&format!("abort {text}"));
    std::process::abort();
}
