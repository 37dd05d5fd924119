//! The log for users: lines like NCCL's, by `NCCL_DEBUG`, in `NCCL_DEBUG_FILE` or on standard
//! output.
//!
//! Not in this module: the log that tests read (`log`); subsystems, time stamps and the `%h` and
//! `%p` of file names. Invariant: as in NCCL, the variables are read at the first message and at
//! the first message after a reset, and the file is opened for writing from its start.

use std::fs::File;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

/// Log level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Silent,
    Warn,
    Info,
}

struct Log {
    level: Level,
    /// The file; `None` for standard output.
    file: Option<File>,
}

static LOG: Mutex<Option<Log>> = Mutex::new(None);

fn open() -> Log {
    let level = match std::env::var("NCCL_DEBUG").unwrap_or_default().to_ascii_uppercase().as_str() {
        "WARN" => Level::Warn,
        "INFO" | "ABORT" | "TRACE" => Level::Info,
        _ => Level::Silent,
    };
    let name = std::env::var_os("NCCL_DEBUG_FILE").filter(|name| !name.is_empty() && level != Level::Silent);
    Log { level, file: name.and_then(|name| File::create(name).ok()) }
}

/// Makes the next message read the variables again.
pub(crate) fn reset() {
    *LOG.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// Logs a line if its level is enabled.
pub(crate) fn say(level: Level, text: &str) {
    let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let log = log.get_or_insert_with(open);
    if log.level < level || level == Level::Silent {
        return;
    }
    let name = if level == Level::Warn { "WARN" } else { "INFO" };
    // SAFETY: it takes nothing and gives this thread's number.
    let thread = unsafe { libc::gettid() };
    let line = format!("fake:{}:{thread} [0] NCCL {name} {text}\n", std::process::id());
    let _ = match &mut log.file {
        Some(file) => file.write_all(line.as_bytes()),
        None => std::io::stdout().write_all(line.as_bytes()),
    };
}
