//! Writes the output of a command: results to standard output, messages to standard error, and
//! files.

use std::io::Write;
use std::path::Path;

use crate::console::exit;

/// Prints a line of the result. Exits the process if the line cannot be written. As in other
/// commands, there is no message if the reader has closed the pipe.
pub fn print_line(line: &str) {
    let Err(error) = writeln!(std::io::stdout().lock(), "{line}") else { return };
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        std::process::exit(exit::of_signal(13).into());
    }
    tell(&format!("peerweave: cannot write to standard output: {error}"));
    std::process::exit(exit::LAUNCHER.into());
}

/// Prints a message to standard error. Ignores write errors, because the exit code still reports
/// the outcome.
pub fn tell(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Checks that a file can be written. Neither creates the file nor changes an existing file.
///
/// # Errors
/// Returns the exit code of the command and a message.
pub fn check_writable(path: &Path) -> Result<(), (u8, String)> {
    let is_new = !path.exists();
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    if is_new && opened.is_ok() {
        let _ = std::fs::remove_file(path);
    }
    opened.map(drop).map_err(|error| (exit::LAUNCHER, format!("cannot write {}: {error}", path.display())))
}

/// Writes a file.
///
/// # Errors
/// Returns the exit code of the command and a message.
pub fn write_file(path: &Path, text: &str) -> Result<(), (u8, String)> {
    std::fs::write(path, text).map_err(|error| (exit::LAUNCHER, format!("cannot write {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writability_check_does_not_create_or_change_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("new"), folder.path().join("old"));
        std::fs::write(&old, "text").unwrap();
        check_writable(&new).unwrap();
        check_writable(&old).unwrap();
        assert!(!new.exists());
        assert_eq!(std::fs::read_to_string(old).unwrap(), "text");
        let (code, message) = check_writable(&folder.path().join("missing/new")).unwrap_err();
        assert!(code == exit::LAUNCHER && message.starts_with("cannot write "), "{message}");
    }
}
