//! The log of calls: one line per call with all its arguments and its result.
//!
//! Tests interpret the lines.

use peerweave_fake_common::{Log, call_line};

use crate::abi::Code;
use crate::call::Arguments;

static LOG: Log = Log::new(|| crate::settings::get().log.clone());

/// Writes a line that begins with the process ID.
pub(crate) fn line(text: &str) {
    LOG.line(text);
}

/// Logs a call: `process function(name=value, ...) = code`.
pub(crate) fn call(function: &str, arguments: Arguments<'_>, code: Code) {
    let shown = arguments.iter().map(|(name, argument)| {
        let mut value = String::new();
        argument.show(&mut value);
        (*name, value)
    });
    line(&call_line(function, shown, &(code as i32).to_string()));
}
