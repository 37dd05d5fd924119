//! The log for tests, and the message when the process ends.
//!
//! Module `call` writes a line per call. Tests interpret the lines.

use peerweave_fake_common::Log;

use crate::settings;

static LOG: Log = Log::new(|| settings::get().log.clone());

/// Writes a line that begins with the process ID.
pub(crate) fn line(text: &str) {
    LOG.line(text);
}

/// Ends the process because the call has undefined behaviour in the real library.
pub(crate) fn undefined(what: &str) -> ! {
    eprintln!("fake nccl: {what}");
    line(&format!("undefined behaviour: {what}"));
    std::process::abort();
}
