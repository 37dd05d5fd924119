//! A process that outlives a killed launcher by a moment, to end what the launcher started. Watches nothing but one pipe.
//!
//! The kernel ends the PEs themselves when the launcher dies (`spawn.rs` asks for it); the guard ends what the PEs started. It reads the process
//! groups from its standard input, one line each: `+N` is to be ended, `-N` is not any more. When the input ends it kills and exits.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

/// The launcher's end. When it goes, by whatever way, the guard ends what it was told to end.
#[derive(Debug)]
pub(super) struct Guard {
    pipe: Option<ChildStdin>,
    pub(super) pid: Option<Pid>,
}

impl Guard {
    /// Starts the guard. Where that fails the PEs are still ended by the kernel, only what they start is not: so it is said and not an error.
    pub(super) fn start() -> Self {
        let started = std::env::current_exe().and_then(|this| {
            // A group of its own: a signal to the launcher's group must not reach it.
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
                tracing::warn!(%error, "no guard: what the PEs start would survive if this launcher were killed");
                Self { pipe: None, pid: None }
            }
        }
    }

    /// This group is to be ended with the launcher.
    pub(super) fn watch(&mut self, group: Pid) {
        self.tell('+', group);
    }

    /// This group has ended.
    pub(super) fn forget(&mut self, group: Pid) {
        self.tell('-', group);
    }

    /// Ends the guard: there is nothing left to watch.
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
            tracing::warn!(%error, "the guard has gone");
            self.pipe = None;
        }
    }
}

/// The guard's own `main`.
pub fn main() {
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        // Whoever ends the launcher with these also means the PEs; the launcher passes them on, and its end is seen here.
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
