//! Detects whether the other PEs are alive: by a descriptor of their process, which the kernel
//! marks when the process ends; without a descriptor, by the process number and the reports of the
//! rendezvous; and by the state that each PE publishes in its page.
//!
//! Only waiters that have waited for milliseconds ask. A process descriptor names one process
//! forever, even if its number is reused. A number is used only if it names the process (see
//! `process.rs`), together with the start time of the process.

use crate::memory::layout::{Segments, state};
use crate::sync::process::Identity;
use peerweave_bootstrap::{Loss, Rendezvous};
use peerweave_core::PeerCause;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

/// Watches the processes of the other PEs.
#[derive(Debug)]
pub(crate) struct Liveness {
    segments: Segments,
    processes: Box<[Process]>,
    /// Reports of the rendezvous, for processes that this process cannot watch itself.
    reports: Reports,
}

#[derive(Debug)]
enum Process {
    /// This process: another thread of it, or this PE. Its page says when it leaves.
    Own,
    /// Another process, watched by its descriptor, or by its number after the program closed the
    /// descriptor.
    Described(OwnedFd, Numbered),
    /// A process without a descriptor.
    Numbered(Numbered),
    /// A process that ended before it could be watched.
    Ended,
    /// A process whose number is not valid here, such as one in another PID namespace. The
    /// rendezvous reports its end.
    Distant,
}

/// A process, identified by its number.
#[derive(Clone, Copy, Debug)]
struct Numbered {
    pid: Pid,
    /// The start time of the process, in units of the kernel; `None` if it could not be read.
    started: Option<u64>,
}

#[derive(Debug, Default)]
struct Reports {
    rendezvous: Option<Weak<Rendezvous>>,
    lost: Mutex<BTreeSet<usize>>,
}

impl Liveness {
    /// Starts to watch all PEs, whose pages are filled in. They were alive a moment ago, because
    /// they wait for this PE.
    pub(crate) fn new(segments: Segments, rendezvous: Option<&Arc<Rendezvous>>) -> Self {
        let own = Identity::own();
        let processes = (0..segments.layout().n_pes).map(|pe| {
            let theirs = Identity::read(segments.page(pe));
            if theirs == own {
                return Process::Own;
            }
            match own.number_of(&theirs) {
                Ok(pid) => Process::of(pe, pid),
                Err(why) => {
                    tracing::warn!(pe, %why, "the end of this PE is reported by the rendezvous");
                    Process::Distant
                }
            }
        });
        let processes = processes.collect();
        Self { segments, processes, reports: Reports { rendezvous: rendezvous.map(Arc::downgrade), lost: Mutex::default() } }
    }

    /// Returns the PEs whose end only the rendezvous reports.
    pub(crate) fn distant(&self) -> Vec<usize> {
        let distant = self.processes.iter().enumerate().filter(|(_, process)| matches!(process, Process::Distant));
        distant.map(|(pe, _)| pe).collect()
    }

    /// Returns the reason why a PE no longer takes part; `None` while it takes part.
    pub(crate) fn gone(&self, pe: usize) -> Option<PeerCause> {
        match self.segments.page(pe).state.load(Ordering::Acquire) {
            state::FINALIZED | state::LEFT => return Some(PeerCause::Left),
            _ => {}
        }
        let ended = match &self.processes[pe] {
            Process::Own => false,
            Process::Described(descriptor, process) => match has_ended(descriptor) {
                Some(ended) => ended,
                // The program has closed the descriptor, and its number may name another file.
                None => process.has_ended().unwrap_or(false),
            },
            Process::Numbered(process) => process.has_ended().unwrap_or_else(|| self.reports.has_lost(pe)),
            Process::Ended => true,
            Process::Distant => self.reports.has_lost(pe),
        };
        // The PE may have left normally and ended since the state was read.
        match self.segments.page(pe).state.load(Ordering::Acquire) {
            state::FINALIZED | state::LEFT => Some(PeerCause::Left),
            state::LEAVING if ended => Some(PeerCause::Left),
            _ if ended => Some(PeerCause::Died),
            _ => None,
        }
    }
}

impl Process {
    /// Starts to watch the process of PE `pe`.
    fn of(pe: usize, pid: Pid) -> Self {
        let process = Numbered { pid, started: started(pid) };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Self::Described(descriptor, process),
            // The process was alive a moment ago, and has died since.
            Err(Errno::SRCH) => Self::Ended,
            // The kernel has no process descriptors (before 5.3).
            Err(Errno::NOSYS) => Self::Numbered(process),
            Err(error) => {
                let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
                tracing::warn!(pe, %error, ?limit, "no descriptor of this PE's process (ulimit -n): it is watched by its number");
                Self::Numbered(process)
            }
        }
    }
}

impl Numbered {
    /// Returns whether it has ended; `None` if that is unknown, because another process may have
    /// its number.
    fn has_ended(&self) -> Option<bool> {
        if rustix::process::test_kill_process(self.pid) == Err(Errno::SRCH) {
            return Some(true);
        }
        match (stat(self.pid), self.started) {
            // The process has ended, and its parent has not waited for it.
            (Some(Stat { state: 'Z' | 'X', .. }), _) => Some(true),
            (Some(now), Some(started)) => Some(now.started != started),
            _ => None,
        }
    }
}

impl Reports {
    /// Returns whether the rendezvous has reported that a PE was lost without leaving.
    fn has_lost(&self, pe: usize) -> bool {
        let mut lost = self.lost.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(rendezvous) = self.rendezvous.as_ref().and_then(Weak::upgrade) {
            let losses = rendezvous.losses().into_iter();
            lost.extend(
                losses.filter(|(_, loss)| matches!(loss, Loss::Disconnected | Loss::Reported(_))).map(|(pe, _)| pe.index()),
            );
        }
        lost.contains(&pe)
    }
}

/// Returns whether the process of a descriptor has ended; `None` if the descriptor is no longer
/// that of a process.
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
    // Another, readable file may have its number by now: only a process descriptor takes a signal.
    // SAFETY: passes numbers and a null pointer, which stands for no further information; signal 0
    // is only a check and is not delivered.
    let sent =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, descriptor.as_raw_fd(), 0, std::ptr::null::<libc::siginfo_t>(), 0) };
    let is_process = sent == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EBADF);
    is_process.then_some(true)
}

struct Stat {
    state: char,
    started: u64,
}

/// Reads the state of a process in `/proc`; `None` if it cannot be read.
fn stat(pid: Pid) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name, in parentheses, may contain any character.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // The 22nd field; the state is the third.
    let started = fields.nth(18)?.parse().ok()?;
    Some(Stat { state, started })
}

fn started(pid: Pid) -> Option<u64> {
    stat(pid).map(|stat| stat.started)
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
    fn end_of_a_process_is_detected_by_descriptor_and_number() {
        let (mut child, pid) = sleeper();
        let descriptor = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let process = Numbered { pid, started: started(pid) };
        assert_eq!((has_ended(&descriptor), process.has_ended()), (Some(false), Some(false)));
        child.kill().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while has_ended(&descriptor) != Some(true) {
            assert!(std::time::Instant::now() < end, "the end was not seen");
        }
        assert_eq!(process.has_ended(), Some(true), "a zombie has ended");
        child.wait().unwrap();
        assert_eq!((has_ended(&descriptor), process.has_ended()), (Some(true), Some(true)));
    }

    #[test]
    fn reused_process_id_does_not_name_the_first_process() {
        let (mut child, pid) = sleeper();
        let process = Numbered { pid, started: started(pid).map(|started| started - 1) };
        assert_eq!(process.has_ended(), Some(true));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn descriptor_of_another_file_is_no_evidence_of_an_end() {
        // Stands for a file that the program opened under the number of a closed descriptor. It is
        // always readable.
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        assert_eq!(has_ended(&file), None);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(writer);
        assert_eq!(has_ended(&reader.into()), None, "the end of a pipe is no exit");
    }
}
