//! Guard process: kills the descendants of the PEs if the launcher is killed.
//!
//! If the launcher dies, the kernel kills the PEs (`spawn.rs` requests that); the guard kills the
//! processes that the PEs started. It reads process groups from standard input, one a line: `+N`
//! adds a group, `-N` removes it. When the input ends, it kills the remaining groups and exits.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

/// The launcher's end of the pipe. When it closes, for any reason, the guard kills the groups it
/// watches.
#[derive(Debug)]
pub(super) struct Guard {
    pipe: Option<ChildStdin>,
    pub(super) pid: Option<Pid>,
}

impl Guard {
    /// Starts the guard. A failure is only logged, because the kernel still kills the PEs
    /// themselves.
    pub(super) fn start() -> Self {
        let started = std::env::current_exe().and_then(|this| {
            // The guard has its own process group, so that a signal to the launcher's group does
            // not reach it.
            Command::new(this)
                .arg("guard")
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()
        });
        match started {
            Ok(mut child) => Self { pipe: child.stdin.take(), pid: Pid::from_raw(child.id() as i32) },
            Err(error) => {
                tracing::warn!(%error, "cannot start the guard: processes started by PEs will survive if this launcher is killed");
                Self { pipe: None, pid: None }
            }
        }
    }

    /// Adds a process group that the guard kills if the launcher dies.
    pub(super) fn watch(&mut self, group: Pid) {
        self.tell('+', group);
    }

    /// Removes a process group that has ended.
    pub(super) fn forget(&mut self, group: Pid) {
        self.tell('-', group);
    }

    /// Stops the guard.
    pub(super) fn stop(&mut self) {
        self.pipe = None;
        if let Some(pid) = self.pid.take() {
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }

    fn tell(&mut self, sign: char, group: Pid) {
        if let Some(pipe) = &mut self.pipe
            && let Err(error) = pipe.write_all(format!("{sign}{}\n", group.as_raw_nonzero()).as_bytes())
        {
            tracing::warn!(%error, "the guard has exited unexpectedly");
            self.pipe = None;
        }
    }
}

/// Entry point of the guard process.
pub fn main() {
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        // The guard ignores these signals: the launcher forwards them to the PEs, and the exit of
        // the launcher closes the pipe.
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
