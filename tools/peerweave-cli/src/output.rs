//! Output of a command: lines of its result, messages, files.

use std::io::Write;
use std::path::Path;

use crate::exit;

/// Prints a line of the result. Exits the process if the line cannot be written. As in other
/// commands, there is no message if the reader has closed the pipe.
pub(crate) fn print_line(line: &str) {
    let Err(error) = writeln!(std::io::stdout().lock(), "{line}") else { return };
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        std::process::exit(exit::of_signal(13).into());
    }
    tell(&format!("peerweave: cannot write to standard output: {error}"));
    std::process::exit(exit::LAUNCHER.into());
}

/// Prints a message to standard error. Ignores write errors, because the exit code still reports
/// the outcome.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Checks that a file can be written. Creates the file if it does not exist; does not change an
/// existing file.
///
/// # Errors
/// The exit code and a message.
pub(crate) fn check_writable(path: &Path) -> Result<(), (u8, String)> {
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).map_err(|error| (exit::LAUNCHER, format!("cannot write {}: {error}", path.display())))
}

/// Writes a file.
///
/// # Errors
/// The exit code and a message.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<(), (u8, String)> {
    std::fs::write(path, text).map_err(|error| (exit::LAUNCHER, format!("cannot write {}: {error}", path.display())))
}
