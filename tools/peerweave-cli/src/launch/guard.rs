//! Guard process: kills the processes that the PEs started, if the launcher is killed.
//!
//! If the launcher dies, the operating system kills the PEs, as `spawn.rs` requests, but not the
//! processes that the PEs started. The guard kills these processes by their process groups. The
//! guard reads process groups from standard input, one per line: `+N` adds group N, `-N` removes
//! group N. At the end of the input, the guard kills the remaining groups and exits.
//! Invariant: the guard knows the process group of a PE before the guard's input ends. Each PE's
//! process adds its own group before it executes the program, and until then holds a copy of the
//! launcher's end of the socket. So the input cannot end earlier, even if the launcher is killed.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::net::{SendFlags, send};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, waitpid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

/// The launcher's end of the socket to the guard process. When this end closes, for any reason, the
/// guard process kills the process groups that it watches.
#[derive(Debug)]
pub(super) struct Guard {
    socket: Option<UnixStream>,
    pub(super) pid: Option<Pid>,
}

/// Descriptor of the launcher's end of the socket to the guard process. The process of a PE
/// inherits the descriptor at the fork, and uses it only between fork and exec.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry(RawFd);

impl Entry {
    /// Tells the guard to watch the process group that this process leads. Allocates nothing and
    /// takes no lock. Ignores write errors: the launcher writes to the same socket later, and logs
    /// the error then.
    ///
    /// # Safety
    /// The [`Guard`] must not have been stopped before this process was forked.
    pub(super) unsafe fn watch_this_process(self) {
        // SAFETY: the caller guarantees that the descriptor was open at the fork, and this process
        // has closed no descriptor since the fork.
        let socket = unsafe { BorrowedFd::borrow_raw(self.0) };
        let mut line = [0; 16];
        let mut rest = &mut line[..];
        if writeln!(rest, "+{}", getpid().as_raw_nonzero()).is_ok() {
            let unused = rest.len();
            // Without `NOSIGNAL`, SIGPIPE would kill the PE if the guard has exited.
            let _ = send(socket, &line[..line.len() - unused], SendFlags::NOSIGNAL);
        }
    }
}

impl Guard {
    /// Starts the guard. A failure is only logged: even without a guard, the operating system kills
    /// the PEs if the launcher dies.
    pub(super) fn start() -> Self {
        let started = UnixStream::pair().and_then(|(socket, input)| {
            let this = std::env::current_exe()?;
            // The guard has its own process group, so that a signal to the launcher's group does
            // not reach the guard.
            let child = Command::new(this)
                .arg("guard")
                .stdin(Stdio::from(OwnedFd::from(input)))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()?;
            Ok((socket, child))
        });
        match started {
            Ok((socket, child)) => Self { socket: Some(socket), pid: Pid::from_raw(child.id() as i32) },
            Err(error) => {
                tracing::warn!(%error, "cannot start the guard: processes started by PEs will survive if this launcher is killed");
                Self { socket: None, pid: None }
            }
        }
    }

    /// Returns the descriptor through which the process of a PE tells the guard process, between
    /// fork and exec, which process group to watch. Returns `None` if the guard process does not
    /// run.
    pub(super) fn entry(&self) -> Option<Entry> {
        self.socket.as_ref().map(|socket| Entry(socket.as_raw_fd()))
    }

    /// Removes a process group that has ended from the groups that the guard process watches.
    pub(super) fn forget(&mut self, group: Pid) {
        if let Some(mut socket) = self.socket.as_ref()
            && let Err(error) = writeln!(socket, "-{}", group.as_raw_nonzero())
        {
            tracing::warn!(
                %error,
                "the guard process exited unexpectedly: processes started by PEs will survive if this launcher is killed"
            );
            self.socket = None;
        }
    }

    /// Ends the guard process without killing the process groups that it watches: kills the guard
    /// process, and waits until it has ended.
    pub(super) fn stop(&mut self) {
        if let Some(pid) = self.pid.take() {
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
        self.socket = None;
    }
}

/// Entry point of the guard process.
pub fn main() {
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        // The guard ignores these signals. The launcher forwards them to the PEs, and the exit of
        // the launcher ends the guard's input.
        let _ = signal_hook::flag::register(signal, Arc::clone(&ignored));
    }
    let mut groups = BTreeSet::new();
    for line in BufReader::new(std::io::stdin().lock()).lines() {
        let Ok(line) = line else { break };
        match line.split_at_checked(1).map(|(sign, number)| (sign, number.parse::<i32>())) {
            Some(("+", Ok(group))) if group > 1 => _ = groups.insert(group),
            Some(("-", Ok(group))) => _ = groups.remove(&group),
            _ => break,
        }
    }
    for group in groups.into_iter().filter_map(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}
