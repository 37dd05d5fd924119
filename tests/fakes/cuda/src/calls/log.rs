//! The log: one line for each call, and one for each failed call.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;

use super::settings::{setting, variable};

/// Appends a line that begins with the process ID, if `PEERWEAVE_FAKE_CUDA_LOG` is set.
pub(super) fn log(line: &str) {
    static LOG: OnceLock<Option<File>> = OnceLock::new();
    let file = LOG.get_or_init(|| {
        setting(variable::LOG).map(|path| {
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(&path)
                .unwrap_or_else(|error| panic!("{}={path}: {error}", variable::LOG))
        })
    });
    if let Some(mut file) = file.as_ref() {
        // One write per line, so that lines of several threads and processes do not mix.
        let _ = file.write_all(format!("{} {line}\n", std::process::id()).as_bytes());
    }
}
