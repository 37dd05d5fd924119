//! Reads the state, the parent and the start time of a process from `/proc`.

use std::fs;

use rustix::process::Pid;

/// A process, identified by its process ID and start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// Start time, in clock ticks since boot.
    pub(crate) started: u64,
}

impl Process {
    /// Returns the process that currently has this process ID. Returns `None` if the process has
    /// ended.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let stat = Stat::of(pid).filter(|stat| !stat.has_ended)?;
        Some(Self { pid, started: stat.started })
    }

    pub(crate) fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

/// The fields of `/proc/PID/stat` that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    state: char,
    parent: i32,
    /// Start time, in clock ticks since boot.
    pub(crate) started: u64,
    /// Whether all threads of the process have ended. The process may still wait to be reaped.
    pub(crate) has_ended: bool,
}

impl Stat {
    /// Reads the fields of a process. Returns `None` if the fields cannot be read.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses fields 3, 4, 20 and 22. Field 2 is the program's name in parentheses, which may
    /// contain any character.
    fn parse(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let threads: u64 = fields.nth(15)?.parse().ok()?;
        let started = fields.nth(1)?.parse().ok()?;
        Some(Self { state, parent, started, has_ended: matches!(state, 'Z' | 'X') && threads <= 1 })
    }
}

/// Returns the process ID of the parent of a process.
pub(crate) fn parent_of(pid: i32) -> Option<i32> {
    Stat::of(pid).map(|stat| stat.parent)
}

/// Returns the process ID of the parent of the process `pid`, and the process `pid` itself as a
/// [`Process`]. Does not check whether the process has ended.
pub(crate) fn parent_and_start(pid: i32) -> Option<(i32, Process)> {
    Stat::of(pid).map(|stat| (stat.parent, Process { pid, started: stat.started }))
}

/// Returns whether a process is stopped, by a signal or a debugger.
pub fn is_stopped(pid: Pid) -> bool {
    Stat::of(pid.as_raw_pid()).is_some_and(|stat| matches!(stat.state, 'T' | 't'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_with_parentheses_in_the_name_is_parsed() {
        let stat = |state: &str, threads: u32| {
            let rest = format!("20 0 {threads} 0 987654 2527232 135");
            Stat::parse(&format!("24251 (a) b (c) {state} 24250 24251 24251 0 -1 4194304 135 445 0 0 0 0 0 0 {rest}"))
        };
        assert_eq!(stat("S", 1), Some(Stat { state: 'S', parent: 24250, started: 987654, has_ended: false }));
        assert!(stat("Z", 1).unwrap().has_ended && !stat("Z", 2).unwrap().has_ended && !stat("S", 2).unwrap().has_ended);
        assert_eq!(Stat::parse("24251 (sh) S"), None);
    }

    #[test]
    fn zombie_process_counts_as_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id() as i32).unwrap();
        assert!(process.lives());
        child.kill().unwrap();
        // The process is not reaped yet.
        while process.lives() {
            std::thread::yield_now();
        }
        assert_eq!(parent_of(process.pid), Some(std::process::id() as i32));
        child.wait().unwrap();
        assert!(!process.lives());
    }
}
