//! Files of processes, which a handle names to another process.

use std::os::fd::OwnedFd;

use super::files::{has_number, label, open_of_process};
use crate::abi::{Code, Result};

/// Names a file that a process has open. Invariant: the name of a process that has ended opens
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessFile {
    pub(crate) pid: u32,
    /// The start time of the process, so that a later process with the same number is not mistaken
    /// for it.
    pub(crate) start: u64,
    /// The number of the descriptor in the process.
    pub(crate) fd: i32,
}

impl ProcessFile {
    /// Names a file of this process by its descriptor.
    pub(crate) fn of_this_process(fd: i32) -> Result<ProcessFile> {
        let pid = std::process::id();
        let start = process_start(pid).ok_or(Code::OPERATING_SYSTEM)?;
        Ok(ProcessFile { pid, start, fd })
    }

    /// Opens the file; `None` if its process has ended or the file is not of this library.
    pub(crate) fn open(&self) -> Option<OwnedFd> {
        if process_start(self.pid) != Some(self.start) {
            return None;
        }
        open_of_process(self.pid, self.fd).filter(|file| label(file).is_some())
    }

    /// Opens the file if its label has this number. The number of a descriptor may have been given
    /// to another file since.
    pub(crate) fn open_numbered(&self, number: u64) -> Option<OwnedFd> {
        self.open().filter(|file| has_number(file, number))
    }
}

/// Returns the start time of a process, which together with its number identifies it forever;
/// `None` if the process has ended.
fn process_start(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold spaces and brackets: fields are counted behind the last bracket.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}
