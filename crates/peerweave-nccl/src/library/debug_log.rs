//! Converts NCCL's log to `tracing` events.
//!
//! The events have the target `nccl`, by which the application's subscriber can filter them.
//!
//! Invariant: a thread reads every line until the process ends, so NCCL never waits for space in
//! the pipe.

use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter};
use std::sync::{Mutex, PoisonError};

use crate::{MisuseKind, Nccl, NcclError};

/// Selects the messages that NCCL logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogLevel {
    /// Errors and warnings only.
    Warn,
    /// Warnings, and information about the hardware and the settings that NCCL selects. NCCL logs
    /// many lines at startup, and few lines later.
    Info,
    /// All messages that were compiled into the library.
    Trace,
}

impl Nccl {
    /// Sends NCCL's log to `tracing`, with the target `nccl`, instead of standard output.
    ///
    /// Sets `NCCL_DEBUG` and `NCCL_DEBUG_FILE` in this process's environment. `NCCL_DEBUG_SUBSYS`
    /// still selects subsystems. NCCL before 2.24.3 reads the variables only once. With such a
    /// library, call this function before any other call that logs. A background thread reads the
    /// log until the process ends. With NCCL 2.24.3 or later, a second call of this function
    /// changes the level.
    ///
    /// Child processes inherit the variables, so NCCL in a child process sends its log to this
    /// process. Once this process has ended, NCCL in the child process logs to standard output.
    ///
    /// # Errors
    /// [`NcclError::Forked`]; [`NcclError::Misuse`] if the system cannot create a pipe or start a
    /// thread.
    ///
    /// # Safety
    /// No other thread, including NCCL's own threads, reads or writes the environment during the
    /// call. So call this function at the start of the program.
    pub unsafe fn trace_log(self, level: LogLevel) -> Result<(), NcclError> {
        const CALL: &str = "Nccl::trace_log";
        self.not_forked(CALL)?;
        let refused = |why| NcclError::misuse(CALL, MisuseKind::Context { why });
        // NCCL opens the pipe by its path, possibly after this call. So this write end stays open
        // until the process ends.
        static WRITER: Mutex<Option<PipeWriter>> = Mutex::new(None);
        let mut writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = match writer.as_ref() {
            Some(writer) => writer,
            None => {
                let (reader, new) = std::io::pipe().map_err(|_| refused("the system cannot create a pipe"))?;
                let thread = std::thread::Builder::new().name("nccl-log".into());
                thread.spawn(move || forward(reader)).map_err(|_| refused("the system cannot start a thread"))?;
                writer.insert(new)
            }
        };
        let path = path_of(writer).ok_or_else(|| refused("this system has no paths for pipes; trace_log requires Linux"))?;
        let level = match level {
            LogLevel::Warn => "WARN",
            LogLevel::Info => "INFO",
            LogLevel::Trace => "TRACE",
        };
        // SAFETY: the caller promises that no other thread uses the environment now.
        unsafe {
            std::env::set_var("NCCL_DEBUG", level);
            std::env::set_var("NCCL_DEBUG_FILE", path);
        }
        match self.reset_debug() {
            // An old library reads the variables once, at its first message.
            Err(NcclError::Unsupported(_)) => Ok(()),
            result => result,
        }
    }
}

/// Returns the path by which NCCL opens the pipe.
#[cfg(target_os = "linux")]
fn path_of(writer: &PipeWriter) -> Option<String> {
    use std::os::fd::AsRawFd as _;
    Some(format!("/proc/{}/fd/{}", process(), writer.as_raw_fd()))
}

/// Returns `None`, because a pipe has no path on this system.
#[cfg(not(target_os = "linux"))]
fn path_of(_writer: &PipeWriter) -> Option<String> {
    None
}

/// Returns the name of this process's directory in `/proc`. The name is a number and not `self`,
/// because child processes inherit the path that contains the name. In a child, `/proc/self` would
/// be the directory of the child, and NCCL would truncate a file of the child.
#[cfg(target_os = "linux")]
fn process() -> String {
    let known = std::fs::read_link("/proc/self").ok().and_then(|path| path.to_str().map(str::to_owned));
    known.unwrap_or_else(|| std::process::id().to_string())
}

fn forward(reader: PipeReader) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    // Reads bytes and not text, because NCCL may log names that are not UTF-8. If this thread
    // stopped reading, NCCL would block.
    while matches!(reader.read_until(b'\n', &mut line), Ok(length) if length > 0) {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if !text.is_empty() {
            match level_of(text) {
                tracing::Level::ERROR | tracing::Level::WARN => tracing::warn!(target: "nccl", "{text}"),
                tracing::Level::TRACE => tracing::trace!(target: "nccl", "{text}"),
                _ => tracing::info!(target: "nccl", "{text}"),
            }
        }
        line.clear();
    }
}

/// Returns the level of a line of NCCL's log. A line has the form `host:pid:tid [device] NCCL WARN
/// text`. In some versions a time and a file name precede the text.
fn level_of(line: &str) -> tracing::Level {
    match line.split_once("NCCL ").and_then(|(_, rest)| rest.split_whitespace().next()) {
        Some("WARN" | "ABORT") => tracing::Level::WARN,
        Some("TRACE" | "CALL") => tracing::Level::TRACE,
        _ => tracing::Level::INFO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_levels_are_parsed_from_log_lines() {
        for (line, level) in [
            ("node1:7:9 [0] NCCL INFO Bootstrap: Using lo:127.0.0.1<0>", tracing::Level::INFO),
            ("[2026-11-21 05:00:00] node1:7:9 [0] init.cc:99 NCCL WARN Invalid config", tracing::Level::WARN),
            ("node1:7:9 [0] 12.5 main:3 NCCL TRACE x", tracing::Level::TRACE),
            ("NCCL version 2.32.3+cuda13.0", tracing::Level::INFO),
            ("something else", tracing::Level::INFO),
        ] {
            assert_eq!(level_of(line), level, "{line}");
        }
    }

    #[test]
    fn log_reader_reads_every_line_until_all_writers_close() {
        use std::io::Write as _;
        let (reader, mut writer) = std::io::pipe().expect("the system creates a pipe");
        let reader = std::thread::spawn(move || forward(reader));
        // The lines exceed the capacity of a pipe, so writing would block without a reader.
        for _ in 0..4_000 {
            writer
                .write_all(b"node:1:2 [0] NCCL INFO \xff not text, and long enough to fill the pipe many times\n")
                .expect("the reader reads the line");
        }
        drop(writer);
        reader.join().expect("the reader ends");
    }
}
