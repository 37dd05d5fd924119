//! Finds the process that set a variable for this process. This is the launcher, even with shells
//! and wrappers in between. Reads `/proc`.
//!
//! Invariant: all processes that one launcher started with the same variable get the same answer.
//! The only exception is a process that has set the variable itself.

use std::fs;

/// Maximum number of ancestors to examine.
const MAX_GENERATIONS: usize = 64;

/// Returns the process ID and the start time of the nearest ancestor without `name` in its
/// environment. Without such an ancestor, returns those of the last ancestor.
pub(super) fn of_variable(name: &str) -> Option<String> {
    let (process, _) = ancestor_without(name)?;
    Some(format!("{} {}", process.pid, process.started))
}

/// Returns the nearest ancestor without `name` in its environment. Returns `None` if there is no
/// such ancestor.
pub(crate) fn agent_of_variable(name: &str) -> Option<Process> {
    ancestor_without(name).and_then(|(process, lacks_it)| lacks_it.then_some(process))
}

/// Returns the nearest ancestor without `name` in its environment, and `true`. Without such an
/// ancestor, returns the last ancestor and `false`.
fn ancestor_without(name: &str) -> Option<(Process, bool)> {
    let mut pid = rustix::process::getppid()?.as_raw_nonzero().get();
    for _ in 0..MAX_GENERATIONS {
        let stat = Stat::of(pid)?;
        // An unreadable environment belongs to a process of another user, for example a launcher of
        // the system. It counts as empty.
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let lacks_it = value(&environment, name).is_none();
        if stat.parent <= 1 || lacks_it {
            return Some((Process { pid, started: stat.started }, lacks_it));
        }
        pid = stat.parent;
    }
    None
}

/// A process, identified by its process ID and start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    started: u64,
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
struct Stat {
    parent: i32,
    started: u64,
    /// Whether all threads of the process have ended. The process may still wait to be reaped.
    has_ended: bool,
}

impl Stat {
    fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses fields 3, 4, 20 and 22. Field 2 is the program's name in parentheses, which may
    /// contain any character.
    fn parse(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let threads: u64 = fields.nth(15)?.parse().ok()?;
        let started = fields.nth(1)?.parse().ok()?;
        Some(Self { parent, started, has_ended: matches!(state, "Z" | "X") && threads <= 1 })
    }
}

/// Returns the process ID of the parent of a process.
pub(crate) fn parent_of(pid: i32) -> Option<i32> {
    Stat::of(pid).map(|stat| stat.parent)
}

/// Returns the value of a variable in a block of `NAME=value` entries, each terminated by a zero
/// byte.
pub(crate) fn value<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut entries = environment.split(|&byte| byte == 0);
    entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
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
        assert_eq!(stat("S", 1), Some(Stat { parent: 24250, started: 987654, has_ended: false }));
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

    #[test]
    fn prefix_of_a_variable_name_does_not_match() {
        let environment = b"A=1\0PMI_RANK_MAP=x\0PMI_RANK=0\0";
        assert_eq!((value(environment, "PMI_RANK"), value(environment, "A")), (Some(&b"0"[..]), Some(&b"1"[..])));
        assert!(["PMI", "RANK", "B"].iter().all(|name| value(environment, name).is_none()));
    }

    #[test]
    fn unset_variable_is_attributed_to_the_parent_process() {
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
        let starter = of_variable("PEERWEAVE_NOBODY_SETS_THIS").unwrap();
        assert!(starter.starts_with(&format!("{parent} ")), "{starter}");
    }
}
