//! The log of calls: one line per call with all its arguments and its result, and what ends the process.
//!
//! What is not here: what tests read from it. Invariant: a line is written by one `write`, so that lines of several processes do
//! not mix.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::LazyLock;

use crate::call::Arguments;

static FILE: LazyLock<Option<File>> = LazyLock::new(|| {
    let path = crate::settings::get().log.as_ref()?;
    OpenOptions::new().create(true).append(true).open(path).ok()
});

/// Writes a line after the process's number.
pub(crate) fn line(text: &str) {
    if let Some(mut file) = FILE.as_ref() {
        let _ = file.write_all(format!("{} {text}\n", std::process::id()).as_bytes());
    }
}

/// Writes a call: `process function(name=value, ...) = result`.
pub(crate) fn call(function: &str, arguments: Arguments<'_>, result: &str) {
    let mut text = format!("{function}(");
    for (index, (name, argument)) in arguments.iter().enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        text.push_str(name);
        text.push('=');
        argument.show(&mut text);
    }
    line(&format!("{text}) = {result}"));
}

/// Says something on standard error.
pub(crate) fn complain(text: &str) {
    eprintln!("fake nvshmem: {text}");
}

/// Ends the process over what NVSHMEM leaves undefined, or over what it ends the process for itself.
pub(crate) fn undefined(text: &str) -> ! {
    complain(text);
    line(&format!("abort {text}"));
    std::process::abort();
}
