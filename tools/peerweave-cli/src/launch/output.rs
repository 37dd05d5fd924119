//! Queues for the launcher's standard output and standard error. A write never blocks the launcher.
//!
//! Invariant: every line is written whole. The lines of a stream are written in the order in which
//! they were queued. If both streams are the same file, the lines of both streams together have
//! this order.
//!
//! If a stream is not read for a long time, its queue becomes full. The launcher then stops reading
//! the output of the PEs, so the PEs block in their writes. The launcher itself does not block.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Queue length above which the pipes of the PEs are no longer read.
const HIGH_WATER_BYTES: usize = 1 << 20;

/// Number of bytes that a writable pipe accepts without blocking (`PIPE_BUF`).
const ATOMIC_WRITE_BYTES: usize = 4096;

/// One of the launcher's two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

#[derive(Debug, Default)]
struct Queue {
    pieces: VecDeque<(Target, Vec<u8>)>,
    written_bytes: usize,
}

/// The text that waits to be written to the launcher's standard output and standard error.
#[derive(Debug)]
pub struct Output {
    queues: [Queue; 2],
    queued_bytes: usize,
    same_file: bool,
    closed: [bool; 2],
    lost: bool,
}

impl Output {
    /// Creates empty queues.
    pub(super) fn new() -> Self {
        Self { queues: Default::default(), queued_bytes: 0, same_file: same_file(), closed: [false; 2], lost: false }
    }

    /// Queues a line and adds its line end.
    pub fn line(&mut self, target: Target, prefix: &[u8], line: &[u8]) {
        if self.closed[target as usize] {
            return;
        }
        let mut bytes = Vec::with_capacity(prefix.len() + line.len() + 1);
        bytes.extend_from_slice(prefix);
        bytes.extend_from_slice(line);
        bytes.push(b'\n');
        self.queued_bytes += bytes.len();
        let queue = if self.same_file { 0 } else { target as usize };
        self.queues[queue].pieces.push_back((target, bytes));
    }

    /// Returns whether the queues are full, so that the pipes of the PEs must not be read for now.
    pub(super) fn is_full(&self) -> bool {
        self.queued_bytes > HIGH_WATER_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queued_bytes == 0
    }

    /// Returns whether a write to this stream failed, for example because its reader has closed the
    /// pipe. The launcher writes nothing more to such a stream.
    pub(super) fn is_closed(&self, target: Target) -> bool {
        self.closed[target as usize]
    }

    /// Returns whether a write to standard output failed. A reader that has closed the stream does
    /// not count as a failure.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Returns the streams that have queued data. The launcher must poll these streams.
    pub(super) fn waits_for(&self) -> impl Iterator<Item = Target> + '_ {
        self.queues.iter().filter_map(|queue| queue.pieces.front().map(|(target, _)| *target))
    }

    /// Writes queued data to a stream that `poll` has reported as writable. Writes at most as many
    /// bytes as the stream accepts without blocking.
    pub(super) fn write_some(&mut self, target: Target) {
        let queue = if self.same_file { 0 } else { target as usize };
        let Queue { pieces, written_bytes } = &mut self.queues[queue];
        let Some((front, bytes)) = pieces.front() else { return };
        if *front != target {
            return;
        }
        // Joins short lines, so that many lines need one system call.
        let mut joined = Vec::new();
        let rest = &bytes[*written_bytes..];
        let chunk = if rest.len() >= ATOMIC_WRITE_BYTES {
            &rest[..ATOMIC_WRITE_BYTES]
        } else {
            joined.extend_from_slice(rest);
            for (next, bytes) in pieces.iter().skip(1) {
                if *next != target || joined.len() + bytes.len() > ATOMIC_WRITE_BYTES {
                    break;
                }
                joined.extend_from_slice(bytes);
            }
            &joined
        };
        match rustix::io::write(fd_of(target), chunk) {
            Ok(mut count) => {
                self.queued_bytes -= count;
                while let Some((_, bytes)) = pieces.front() {
                    let left = bytes.len() - *written_bytes;
                    if count < left {
                        *written_bytes += count;
                        break;
                    }
                    count -= left;
                    *written_bytes = 0;
                    pieces.pop_front();
                }
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(errno) => {
                self.close(target);
                if target == Target::Stdout && errno != rustix::io::Errno::PIPE {
                    self.lost = true;
                    let why = io::Error::from(errno).to_string();
                    self.line(Target::Stderr, b"peerweave: cannot write to standard output: ", why.as_bytes());
                }
            }
        }
    }

    /// Closes a stream after a failed write: drops its queued lines, and makes [`line`](Self::line)
    /// ignore later lines for it.
    fn close(&mut self, target: Target) {
        self.closed[target as usize] = true;
        for queue in &mut self.queues {
            if queue.pieces.front().is_some_and(|(to, _)| *to == target) {
                queue.written_bytes = 0;
            }
            queue.pieces.retain(|(to, _)| *to != target);
        }
        self.queued_bytes = self.queues.iter().flat_map(|queue| &queue.pieces).map(|(_, bytes)| bytes.len()).sum();
    }
}

/// Returns the file descriptor of standard output or standard error, as `target` says.
pub(super) fn fd_of(target: Target) -> BorrowedFd<'static> {
    match target {
        Target::Stdout => rustix::stdio::stdout(),
        Target::Stderr => rustix::stdio::stderr(),
    }
}

/// Returns whether both streams are the same terminal, file or pipe. If so, a line of one stream
/// could split a line of the other stream.
fn same_file() -> bool {
    let identity = |fd: BorrowedFd<'_>| -> io::Result<_> {
        let stat = rustix::fs::fstat(fd)?;
        Ok((stat.st_dev, stat.st_ino))
    };
    let (out, err) = (rustix::stdio::stdout(), rustix::stdio::stderr());
    matches!((identity(out.as_fd()), identity(err.as_fd())), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_stdout_keeps_a_partly_written_line_of_stderr() {
        let mut output = Output { same_file: false, ..Output::new() };
        output.line(Target::Stdout, b"", b"dropped");
        output.line(Target::Stderr, b"", b"half of this line is written");
        output.queues[Target::Stdout as usize].written_bytes = 3;
        output.queues[Target::Stderr as usize].written_bytes = 14;
        output.close(Target::Stdout);
        let [dropped, kept] = &output.queues;
        assert_eq!((dropped.pieces.len(), dropped.written_bytes), (0, 0));
        assert_eq!((kept.pieces.len(), kept.written_bytes), (1, 14));
    }
}
