//! Names of files that a process has open. A handle passes such a name to another process.

use std::os::fd::OwnedFd;

use super::files::{has_number, label, open_of_process};
use crate::abi::{Code, Result};

/// The name of a file that a process has open. Invariant: the name opens nothing after the process
/// has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessFile {
    pub(crate) pid: u32,
    /// The start time of the process, so that a later process with the same process ID is not
    /// mistaken for this one.
    pub(crate) start: u64,
    /// The number of the descriptor in the process.
    pub(crate) fd: i32,
}

impl ProcessFile {
    /// Returns the name of a file of this process, given its descriptor.
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

    /// Opens the file if its label has this number. The check is necessary because the process may
    /// have reused the descriptor for another file.
    pub(crate) fn open_numbered(&self, number: u64) -> Option<OwnedFd> {
        self.open().filter(|file| has_number(file, number))
    }
}

/// Returns the start time of a process; `None` if the process has ended. Start time and process ID
/// together identify a process forever.
fn process_start(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name may contain spaces and brackets, so fields are counted after the last
    // bracket.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}
