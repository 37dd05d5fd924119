//! Splits a stream of bytes into lines.
//!
//! Invariant: every byte except line ends is emitted exactly once and in order. If more than
//! [`LONGEST_LINE_BYTES`] bytes of an incomplete line arrive, the line is emitted as several lines.

/// Maximum number of bytes that are stored of an incomplete line. Longer lines are split, so that a
/// program that prints no line ends cannot fill the launcher's memory.
pub(super) const LONGEST_LINE_BYTES: usize = 1 << 20;

/// Splits one stream of bytes into lines. If the received bytes end with an incomplete line, stores
/// this line until its end arrives.
#[derive(Debug, Default)]
pub(super) struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// Appends `bytes` to the stream. Calls `line` with each line that is now complete. If more
    /// than [`LONGEST_LINE_BYTES`] bytes of an incomplete line are stored, also calls `line` with
    /// pieces of this length.
    pub(super) fn push(&mut self, mut bytes: &[u8], mut line: impl FnMut(&[u8])) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let (head, tail) = bytes.split_at(end);
            if self.rest.is_empty() {
                line(head);
            } else {
                self.rest.extend_from_slice(head);
                line(&self.rest);
                self.rest.clear();
            }
            bytes = &tail[1..];
        }
        self.rest.extend_from_slice(bytes);
        while self.rest.len() > LONGEST_LINE_BYTES {
            let tail = self.rest.split_off(LONGEST_LINE_BYTES);
            line(&self.rest);
            self.rest = tail;
        }
    }

    /// Calls `line` with the last line of the stream if that line has no line end.
    pub(super) fn finish(&mut self, line: impl FnOnce(&[u8])) {
        if !self.rest.is_empty() {
            line(&std::mem::take(&mut self.rest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_splitting_is_independent_of_chunk_sizes() {
        let text = b"one\n\nthree is longer\nrest";
        for piece in 1..=text.len() {
            let (mut lines, mut got) = (Lines::default(), Vec::new());
            for bytes in text.chunks(piece) {
                lines.push(bytes, |line| got.push(line.to_vec()));
            }
            lines.finish(|line| got.push(line.to_vec()));
            assert_eq!(got, [&b"one"[..], b"", b"three is longer", b"rest"], "pieces of {piece}");
        }
    }

    #[test]
    fn long_line_without_an_end_is_split_without_losing_bytes() {
        let (mut lines, mut got) = (Lines::default(), Vec::new());
        for _ in 0..5 {
            lines.push(&vec![b'x'; LONGEST_LINE_BYTES / 2], |line| got.push(line.len()));
        }
        lines.finish(|line| got.push(line.len()));
        assert_eq!(got, [LONGEST_LINE_BYTES, LONGEST_LINE_BYTES, LONGEST_LINE_BYTES / 2]);
    }
}
