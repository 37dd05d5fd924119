//! Watches a process of this machine. If possible, this module opens a process descriptor (pidfd),
//! which becomes readable when the process ends. Without a descriptor, the process is watched by
//! its process ID.
//!
//! A process descriptor always refers to the same process, even if the process ID is reused. A
//! process ID is compared together with the start time of the process.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsRawFd, OwnedFd};

use super::Stat;

/// The watch on the process of a PE, which detects the end of the process.
#[derive(Debug)]
pub struct Watch(By);

#[derive(Debug)]
enum By {
    /// The process is watched by its process descriptor. If other code of this program has closed
    /// the descriptor, [`Numbered`] is used instead.
    Descriptor(OwnedFd, Numbered),
    /// The process is watched by its process ID, because no process descriptor (pidfd) could be
    /// opened.
    Number(Numbered),
    /// The process ended before it could be watched.
    Ended,
}

/// A process, identified by its process ID and start time.
#[derive(Clone, Copy, Debug)]
struct Numbered {
    pid: Pid,
    /// Start time of the process, in clock ticks since boot. `None` if it could not be read.
    started: Option<u64>,
}

impl Watch {
    /// Starts to watch the process `pid` of PE `pe`. The caller guarantees that the process was
    /// alive shortly before, when the PE joined. The process must have the same
    /// [`pid_namespace`](super::pid_namespace) as this process, because otherwise `pid` would mean
    /// another process.
    pub fn of(pe: usize, pid: Pid) -> Self {
        let process = Numbered { pid, started: started(pid) };
        Self(match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => By::Descriptor(descriptor, process),
            // The process was alive when it joined, so it has died since then.
            Err(Errno::SRCH) => By::Ended,
            // The kernel does not support process descriptors (before version 5.3).
            Err(Errno::NOSYS) => By::Number(process),
            Err(error) => {
                let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
                tracing::warn!(pe, %error, ?limit, "cannot open a process descriptor for this PE, so its process is watched by process ID; raise the limit of open descriptors with `ulimit -n`");
                By::Number(process)
            }
        })
    }

    /// Returns whether the process has ended. Returns `None` if that is unknown.
    pub fn has_ended(&self) -> Option<bool> {
        match &self.0 {
            By::Descriptor(descriptor, process) => Some(match has_ended(descriptor) {
                Some(ended) => ended,
                // The program has closed the descriptor, and its number may now refer to another
                // file.
                None => process.has_ended().unwrap_or(false),
            }),
            By::Number(process) => process.has_ended(),
            By::Ended => Some(true),
        }
    }
}

impl Numbered {
    /// Returns whether the process has ended. Returns `None` if this is unknown, because the start
    /// time could not be read from `/proc`, now or when the watch began. The process ID may then
    /// belong to another process.
    fn has_ended(&self) -> Option<bool> {
        if rustix::process::test_kill_process(self.pid) == Err(Errno::SRCH) {
            return Some(true);
        }
        // A process may have ended although its parent has not reaped it.
        let now = Stat::of(self.pid.as_raw_pid())?;
        if now.has_ended { Some(true) } else { self.started.map(|started| started != now.started) }
    }
}

/// Returns whether the process of a descriptor has ended. Returns `None` if the descriptor no
/// longer refers to a process.
fn has_ended(descriptor: &OwnedFd) -> Option<bool> {
    let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut polled, Some(&now)) {
        Ok(0) => return Some(false),
        Ok(_) => {}
        Err(_) => return Some(false),
    }
    if !polled[0].revents().contains(PollFlags::IN) {
        return None;
    }
    // The number of the descriptor may now refer to another file that is readable. Only a process
    // descriptor accepts a signal. SAFETY: passes numbers and a null pointer, which means that
    // there is no further information. Signal 0 is only a check and is not delivered.
    let sent =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, descriptor.as_raw_fd(), 0, std::ptr::null::<libc::siginfo_t>(), 0) };
    let is_process = sent == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EBADF);
    is_process.then_some(true)
}

/// Returns the start time of a process. Returns `None` if it cannot be read.
fn started(pid: Pid) -> Option<u64> {
    Stat::of(pid.as_raw_pid()).map(|stat| stat.started)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeper() -> (Child, Pid) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        (child, pid)
    }

    #[test]
    fn end_of_a_process_is_detected_by_pidfd_and_by_pid() {
        let (mut child, pid) = sleeper();
        let descriptor = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let process = Numbered { pid, started: started(pid) };
        assert_eq!((has_ended(&descriptor), process.has_ended()), (Some(false), Some(false)));
        child.kill().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while has_ended(&descriptor) != Some(true) {
            assert!(std::time::Instant::now() < end, "the end of the process was not detected");
        }
        assert_eq!(process.has_ended(), Some(true), "a zombie does not count as ended");
        child.wait().unwrap();
        assert_eq!((has_ended(&descriptor), process.has_ended()), (Some(true), Some(true)));
    }

    #[test]
    fn process_counts_as_ended_if_its_id_has_a_new_start_time() {
        let (mut child, pid) = sleeper();
        let process = Numbered { pid, started: started(pid).map(|started| started - 1) };
        assert_eq!(process.has_ended(), Some(true));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn process_state_is_unknown_if_the_descriptor_is_not_a_pidfd() {
        // Represents a file that the program opened under the number of a closed descriptor. The
        // file is always readable.
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        assert_eq!(has_ended(&file), None);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(writer);
        assert_eq!(has_ended(&reader.into()), None, "the end of a pipe counts as the end of a process");
    }
}
