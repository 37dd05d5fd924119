//! Watches the processes of a torchrun job on one machine, because torchrun does not report a
//! process that ends.
//!
//! A PE that dies before it connects does not reach the rendezvous. If all PEs are descendants of
//! one agent, their processes can be watched instead. This module reads `/proc` and starts no
//! process. [`super::join`] uses its reports.
//!
//! Invariants:
//! - [1] A process belongs to rank `n` if its initial environment names the rank `n` and has the
//!   same values of the variables [`IDENTITY`] as the environment of this process. In addition,
//!   both processes have the same user and the same PID namespace.
//! - [2] A rank is reported as ended only if three conditions are true. First, the agent that
//!   started this PE also started a process of the rank, and that process ran this program. Second,
//!   every observed process of the rank has ended. Third, two searches of all processes, at least
//!   [`GRACE`] apart, have found no live process of the rank. So these processes are not reported:
//!   a shell that replaces itself by `exec`, a helper, a fork, and a program that continues in its
//!   child.
//! - [3] A process is identified by its process ID and start time, because process IDs are reused.
//! - [4] A process that cannot be read, or was never observed, is not reported.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::job::env::names;
use crate::job::env::starter::{agent_of_variable, value};
use crate::job::{Job, Launcher, Served};
use crate::process::{Process, parent_of};

/// Delay between the end of a rank's last process and the report that the rank has ended. During
/// this delay, the agent may start another process for the rank.
const GRACE: Duration = Duration::from_millis(500);
/// Minimum interval between two checks. The first value applies in the first phase of the watch,
/// which lasts [`AT_FIRST`]. The second value applies later.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));
/// Duration of the first phase of the watch, in which the shorter interval of [`LOOK_EVERY`]
/// applies.
const AT_FIRST: Duration = Duration::from_secs(2);
/// Maximum number of processes that this PE watches for one rank. A rank with this number of
/// processes is never reported as ended.
const MAX_MEMBERS: usize = 64;

/// The variables that distinguish a torchrun job from other jobs of this user.
const IDENTITY: [&str; 5] =
    [names::WORLD_SIZE, names::MASTER_PORT, names::TORCHELASTIC_RUN_ID, names::TORCHELASTIC_RESTART_COUNT, names::RENDEZVOUS];

/// Watches the processes of the ranks that have not joined yet.
#[derive(Debug)]
pub(crate) struct Siblings {
    agent: Process,
    own_rank: u32,
    /// The environment with which this process was started.
    environment: Vec<u8>,
    /// Device and inode of the program that this process runs.
    program: (u64, u64),
    namespace: PathBuf,
    user: u32,
    ranks: Vec<Rank>,
    since: Instant,
    looked_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct Rank {
    members: Vec<Process>,
    /// Whether any check so far has found a process of the rank that runs the same program as this
    /// process.
    ran: bool,
    gone_since: Option<Instant>,
    is_over: bool,
}

impl Siblings {
    /// Starts to watch the processes of a job. This is possible only if the launcher is torchrun,
    /// all PEs are on one machine, PE 0 runs the server, this process was started with the
    /// variables of the job, and `/proc` can be read. Otherwise returns `None`.
    pub(crate) fn of(job: &Job) -> Option<Self> {
        if job.launcher != Launcher::Torchrun || job.served != Served::ByPe0 || !job.is_on_one_machine() {
            return None;
        }
        let environment = fs::read("/proc/self/environ").ok()?;
        let own_rank = number(&environment, names::RANK)?;
        if own_rank != job.pe.get() || number(&environment, names::WORLD_SIZE) != Some(job.n_pes) {
            return None;
        }
        let program = fs::metadata("/proc/self/exe").ok()?;
        Some(Self {
            agent: agent_of_variable(names::RANK)?,
            own_rank,
            environment,
            program: (program.dev(), program.ino()),
            namespace: fs::read_link("/proc/self/ns/pid").ok()?,
            user: rustix::process::geteuid().as_raw(),
            ranks: (0..job.n_pes).map(|_| Rank::default()).collect(),
            since: Instant::now(),
            looked_at: None,
        })
    }

    /// Checks the ranks that have not joined, unless the last check was too recent. Returns the
    /// ranks that have ended, each with the reason. A rank is returned only once.
    pub(crate) fn look(&mut self, awaited: &[u32]) -> Vec<(u32, String)> {
        let now = Instant::now();
        let every = if now - self.since < AT_FIRST { LOOK_EVERY.0 } else { LOOK_EVERY.1 };
        // The more PEs the job has, the longer is the interval.
        let every = every + Duration::from_millis(self.ranks.len() as u64 / 8);
        if self.looked_at.is_some_and(|looked_at| now - looked_at < every) {
            return Vec::new();
        }
        self.looked_at = Some(now);
        if !self.agent.lives() {
            return Vec::new();
        }
        let awaited: HashSet<u32> =
            awaited.iter().copied().filter(|&rank| rank != self.own_rank && (rank as usize) < self.ranks.len()).collect();
        if awaited.iter().any(|&rank| !self.ranks[rank as usize].is_known_to_live()) {
            self.look_below_the_agent(&awaited);
        }
        awaited.into_iter().filter_map(|rank| self.judge(rank, now).map(|what| (rank, what))).collect()
    }

    /// Returns a message if the rank must now be reported as ended: all its processes ended at
    /// least [`GRACE`] ago. Otherwise returns `None`.
    fn judge(&mut self, index: u32, now: Instant) -> Option<String> {
        let rank = &mut self.ranks[index as usize];
        if rank.is_over || !rank.ran || rank.members.len() >= MAX_MEMBERS || rank.members.iter().any(|member| member.lives()) {
            rank.gone_since = None;
            return None;
        }
        let is_first_look = rank.gone_since.is_none();
        let gone_since = *rank.gone_since.get_or_insert(now);
        if is_first_look || now - gone_since >= GRACE {
            // Also searches all processes: a process is no longer a descendant of the agent if a
            // process in between has ended.
            let others: Vec<i32> = numbers(Path::new("/proc")).filter(|&pid| self.rank_of(pid) == Some(index)).collect();
            let rank = &mut self.ranks[index as usize];
            rank.members.extend(others.into_iter().filter_map(Process::of));
            if rank.members.iter().any(|member| member.lives()) {
                rank.gone_since = None;
                return None;
            }
        }
        let rank = &mut self.ranks[index as usize];
        rank.is_over = now - gone_since >= GRACE;
        let pids: Vec<String> = rank.members.iter().map(|member| member.pid.to_string()).collect();
        rank.is_over.then(|| format!("the process of the PE ({pids}) ended before the PE joined", pids = pids.join(", ")))
    }

    /// Searches the descendants of torchrun's agent for processes whose rank is in `awaited`, and
    /// records these processes.
    fn look_below_the_agent(&mut self, awaited: &HashSet<u32>) {
        let mut open = children(self.agent.pid);
        while let Some(pid) = open.pop() {
            let Some(process) = Process::of(pid) else { continue };
            let Some(index) = self.rank_of(pid).filter(|rank| awaited.contains(rank)) else { continue };
            let runs = fs::metadata(format!("/proc/{pid}/exe")).is_ok_and(|exe| (exe.dev(), exe.ino()) == self.program);
            // The files describe this process only if its process ID has not been reused since.
            if !process.lives() {
                continue;
            }
            let rank = &mut self.ranks[index as usize];
            rank.ran |= runs;
            if !rank.members.contains(&process) && rank.members.len() < MAX_MEMBERS {
                rank.members.push(process);
            }
            open.extend(children(pid));
        }
    }

    /// Returns the rank of a process in this job, from its initial environment. Returns `None`
    /// unless the process belongs to this job, this user and this PID namespace.
    fn rank_of(&self, pid: i32) -> Option<u32> {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let rank = number(&environment, names::RANK)?;
        let is_of_job = IDENTITY.iter().all(|name| value(&environment, name) == value(&self.environment, name));
        let is_ours = is_of_job
            && (rank as usize) < self.ranks.len()
            && fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == self.user)
            && fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|namespace| namespace == self.namespace);
        is_ours.then_some(rank)
    }
}

impl Rank {
    /// Returns whether the rank is known to be alive, so that no search for its processes is
    /// necessary. At least one of its observed processes must have run this program, and at least
    /// one must still run.
    fn is_known_to_live(&self) -> bool {
        self.ran && self.members.iter().any(|member| member.lives())
    }
}

/// Returns the process IDs of the children of a process.
fn children(pid: i32) -> Vec<i32> {
    let threads: Vec<i32> = numbers(&PathBuf::from(format!("/proc/{pid}/task"))).collect();
    let lists = threads.iter().map(|thread| fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")));
    let lists: Vec<String> = lists.flatten().collect();
    if !lists.is_empty() {
        return lists.iter().flat_map(|list| list.split_ascii_whitespace()).filter_map(|child| child.parse().ok()).collect();
    }
    // Some kernels do not provide the lists of children.
    numbers(Path::new("/proc")).filter(|&child| parent_of(child) == Some(pid)).collect()
}

/// Finds the entries of a directory whose names are numbers, and returns these numbers.
fn numbers(directory: &Path) -> impl Iterator<Item = i32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn number(environment: &[u8], name: &str) -> Option<u32> {
    std::str::from_utf8(value(environment, name)?).ok()?.trim().parse().ok()
}
