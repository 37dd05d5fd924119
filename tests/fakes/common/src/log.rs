//! The log of calls: one line per call with all its arguments and its result.
//!
//! Invariant: one `write` call writes one line, so that lines of several processes do not mix.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::OnceLock;

/// The log file of a fake.
pub struct Log {
    path: fn() -> Option<String>,
    file: OnceLock<Option<File>>,
}

impl Log {
    /// Creates a log. The first line calls `path` to get the path of the file; `None` disables the
    /// log.
    pub const fn new(path: fn() -> Option<String>) -> Self {
        Self { path, file: OnceLock::new() }
    }

    /// Writes a line that begins with the process ID. Ends the process if the file cannot be
    /// opened.
    pub fn line(&self, text: &str) {
        let open = || {
            let path = (self.path)()?;
            let file = OpenOptions::new().create(true).append(true).open(&path).unwrap_or_else(|error| {
                eprintln!("the log {path} of a fake cannot be opened: {error}");
                std::process::abort();
            });
            Some(file)
        };
        if let Some(mut file) = self.file.get_or_init(open).as_ref() {
            let _ = file.write_all(format!("{} {text}\n", std::process::id()).as_bytes());
        }
    }
}

/// Formats a call: `function(name=value, ...) = result`.
pub fn call_line(function: &str, arguments: impl Iterator<Item = (&'static str, String)>, result: &str) -> String {
    let shown: Vec<String> = arguments.map(|(name, value)| format!("{name}={value}")).collect();
    format!("{function}({}) = {result}", shown.join(", "))
}
