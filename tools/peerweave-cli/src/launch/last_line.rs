//! Extracts the reason for a failure from the standard error of a PE: the last line, or the last
//! panic.
//!
//! Rust's runtime prints a panic in several lines, followed by a note on backtraces or a backtrace.
//! The note and the backtrace do not name the cause and are skipped.

/// Maximum length in bytes of the text that the launcher shows.
const MAX_BYTES: usize = 500;

/// What the previous line of standard error belonged to. This determines how the parser interprets
/// the next line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    /// Ordinary output. Each new line replaces the stored text, so that the last line remains.
    #[default]
    Line,
    /// Message of a panic, which may have several lines.
    Message,
    /// The note on backtraces, or the backtrace, that follows the message of a panic. Its lines are
    /// not stored.
    Backtrace,
}

/// Stores the last line of a PE's standard error, or the message of its last panic.
#[derive(Debug, Default)]
pub(super) struct LastLine {
    text: Vec<u8>,
    part: Part,
}

impl LastLine {
    /// Adds the next line of standard error.
    pub(super) fn push(&mut self, line: &[u8]) {
        let trimmed = line.trim_ascii();
        if trimmed.is_empty() {
            return;
        }
        if is_panic(trimmed) {
            self.text.clear();
            self.part = Part::Message;
            self.append(trimmed);
        } else if self.part != Part::Line && (trimmed == b"stack backtrace:" || is_note(trimmed)) {
            self.part = Part::Backtrace;
        } else if self.part == Part::Message {
            self.append(b" ");
            self.append(trimmed);
        } else if !(self.part == Part::Backtrace && is_frame(trimmed)) {
            self.part = Part::Line;
            self.text.clear();
            self.append(trimmed);
        }
    }

    /// Returns the last line, or the message of the last panic. The text is empty if nothing was
    /// printed.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.text).into_owned()
    }

    fn append(&mut self, bytes: &[u8]) {
        let room = MAX_BYTES - self.text.len();
        self.text.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// Returns whether a line is the first line of a panic: `thread 'main' (4711) panicked at
/// src/main.rs:2:5:`.
fn is_panic(line: &[u8]) -> bool {
    let marks = |mark: &[u8]| line.windows(mark.len()).any(|window| window == mark);
    line.starts_with(b"thread '") && marks(b" panicked at ")
}

/// Returns whether a line is one of the notes on backtraces that Rust's runtime prints.
fn is_note(line: &[u8]) -> bool {
    line.starts_with(b"note: run with `RUST_BACKTRACE=")
        || line.starts_with(b"note: Some details are omitted, run with `RUST_BACKTRACE=")
}

/// Returns whether a line belongs to a backtrace: `12: core::panicking::panic_fmt` or `at
/// ./src/main.rs:2:5`.
fn is_frame(line: &[u8]) -> bool {
    let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
    line.starts_with(b"at ") || (digits > 0 && line[digits..].starts_with(b": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(text: &str) -> String {
        let mut last = LastLine::default();
        text.lines().for_each(|line| last.push(line.as_bytes()));
        last.text()
    }

    #[test]
    fn empty_lines_at_the_end_are_skipped() {
        assert_eq!(last("one\ntwo\n\n  \n"), "two");
        assert_eq!(last(""), "");
    }

    #[test]
    fn panic_message_is_shown_instead_of_the_backtrace_note() {
        let panic = "starting\n\nthread 'main' (7) panicked at src/main.rs:2:5:\nassertion `left == right` failed\n  left: 1\n right: 2\n";
        let shown = "thread 'main' (7) panicked at src/main.rs:2:5: assertion `left == right` failed left: 1 right: 2";
        assert_eq!(last(panic), shown);
        let note = "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n";
        assert_eq!(last(&format!("{panic}{note}")), shown);
        let backtrace = "stack backtrace:\n   0: __rustc::rust_begin_unwind\n             at /rustc/0/library/std/src/panicking.rs:689:5\n  \
                         12: main\nnote: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.\n";
        assert_eq!(last(&format!("{panic}{backtrace}")), shown);
    }

    #[test]
    fn line_printed_after_a_panic_replaces_the_panic_message() {
        let text = "thread 'main' (7) panicked at src/main.rs:2:5:\nno\nnote: run with `RUST_BACKTRACE=1` environment variable\nError: the disk is full";
        assert_eq!(last(text), "Error: the disk is full");
    }

    #[test]
    fn last_of_two_panics_is_shown() {
        let text = "thread 'a' (1) panicked at a.rs:1:1:\none\nthread 'b' (2) panicked at b.rs:1:1:\ntwo";
        assert_eq!(last(text), "thread 'b' (2) panicked at b.rs:1:1: two");
    }

    #[test]
    fn long_failure_message_is_truncated() {
        assert_eq!(last(&"x".repeat(2000)).len(), MAX_BYTES);
        assert_eq!(last(&format!("thread 'a' panicked at a.rs:1:1:\n{0}\n{0}", "x".repeat(400))).len(), MAX_BYTES);
    }
}
