//! Whether the other PEs still live: by a descriptor of their process, which the kernel marks when it ends in whatever way, and by what they
//! say of themselves in their page.
//!
//! Asked only by waiters that have waited for milliseconds. A process descriptor names one process for good: a reused number cannot deceive it.

use crate::layout::{Segments, state};
use peerweave_core::PeerCause;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// Watches the processes of the other PEs.
#[derive(Debug)]
pub(crate) struct Liveness {
    segments: Segments,
    processes: Box<[Process]>,
}

#[derive(Debug)]
enum Process {
    /// This process: a thread of it, or this PE. It speaks for itself.
    Own,
    /// Another one.
    Other(OwnedFd),
    /// The kernel has no process descriptors (before 5.3): asked for by number.
    Numbered(Pid),
    /// It had ended before it could be watched.
    Ended,
    /// It cannot be watched from here, such as from another namespace of processes: it speaks for itself, and deadlines hold.
    Unwatched,
}

impl Liveness {
    /// Begins to watch all PEs, whose pages are filled in, by process number. They are known to have been alive a moment ago, since they wait
    /// for this PE.
    pub(crate) fn new(segments: Segments) -> Self {
        let own = std::process::id();
        let processes = (0..segments.layout().n_pes)
            .map(|pe| {
                let pid = segments.page(pe).pid.load(Ordering::Acquire);
                match i32::try_from(pid).ok().and_then(Pid::from_raw) {
                    _ if pid == u64::from(own) => Process::Own,
                    Some(pid) => match pidfd_open(pid, PidfdFlags::empty()) {
                        Ok(descriptor) => Process::Other(descriptor),
                        Err(rustix::io::Errno::NOSYS) => Process::Numbered(pid),
                        // A moment ago it met this PE; in this namespace, no such process means that it has died since.
                        Err(rustix::io::Errno::SRCH)
                            if segments.page(pe).pid_namespace.load(Ordering::Acquire) == pid_namespace() =>
                        {
                            Process::Ended
                        }
                        Err(error) => {
                            tracing::warn!(pe, %error, "cannot watch the process of this PE: its death would be noticed by deadlines alone");
                            Process::Unwatched
                        }
                    },
                    None => Process::Unwatched,
                }
            })
            .collect();
        Self { segments, processes }
    }

    /// What became of a PE, if it takes part no more.
    pub(crate) fn gone(&self, pe: usize) -> Option<PeerCause> {
        match self.segments.page(pe).state.load(Ordering::Acquire) {
            state::FINALIZED | state::LEFT => return Some(PeerCause::Left),
            _ => {}
        }
        let ended = match &self.processes[pe] {
            Process::Own => false,
            Process::Other(descriptor) => {
                let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(n) if n > 0)
            }
            Process::Numbered(pid) => rustix::process::test_kill_process(*pid) == Err(rustix::io::Errno::SRCH),
            Process::Ended => true,
            Process::Unwatched => false,
        };
        // It may have left in good order and ended since the state was read.
        match self.segments.page(pe).state.load(Ordering::Acquire) {
            state::FINALIZED | state::LEFT => Some(PeerCause::Left),
            _ if ended => Some(PeerCause::Died),
            _ => None,
        }
    }
}

/// The namespace in which this process has its number; 0 where the system does not say.
pub(crate) fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| std::os::unix::fs::MetadataExt::ino(&namespace))
}
