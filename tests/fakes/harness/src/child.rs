//! Child processes: the test binary, started again for one test. The documentation of the crate
//! describes which libraries a child finds. Invariant: a child is reaped before its output is
//! returned, and killed if it exceeds its time limit.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use peerweave_bootstrap::{Endpoint, Job, Served, Token};

const SCENARIO: &str = "PEERWEAVE_FAKES_SCENARIO";
const RANK: &str = "PEERWEAVE_FAKES_RANK";
const COUNT: &str = "PEERWEAVE_FAKES_COUNT";
const DIRECTORY: &str = "PEERWEAVE_FAKES_DIRECTORY";

/// Index, from 1, of the body of the test for which the child was started.
pub(crate) const CALL: &str = "PEERWEAVE_FAKES_CALL";

/// The log of the fake driver's calls: one file for all children of a scenario.
const LOG: &str = "PEERWEAVE_FAKE_CUDA_LOG";

/// A child process and its index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Child {
    /// The full name of the test that runs.
    pub scenario: String,
    /// The index of this child, from 0.
    pub rank: usize,
    /// Number of children.
    pub count: usize,
    /// A directory that all children of the scenario share, for sockets and files; empty at the
    /// start.
    pub directory: PathBuf,
}

/// Returns this process as a [`Child`]; `None` if no [`crate::Fakes`] started the process.
#[must_use]
pub fn child() -> Option<Child> {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    Some(Child {
        scenario: std::env::var(SCENARIO).ok()?,
        rank: number(RANK)?,
        count: number(COUNT)?,
        directory: std::env::var_os(DIRECTORY)?.into(),
    })
}

/// Returns how often this process has called a function of the fake driver, including calls that
/// have not returned.
///
/// # Panics
/// If `PEERWEAVE_FAKE_CUDA_LOG` is not set. [`crate::Fakes`] sets it for its children.
#[must_use]
pub fn entered(function: &str) -> usize {
    let path = std::env::var_os(LOG).expect("PEERWEAVE_FAKE_CUDA_LOG is set in a child of the harness");
    // The file does not exist before the first call.
    let log = std::fs::read_to_string(path).unwrap_or_default();
    let own = std::process::id().to_string();
    let entry = |line: &&str| {
        let mut words = line.split_whitespace();
        words.next() == Some(&*own) && words.next() == Some(function) && words.next().is_none()
    };
    log.lines().filter(entry).count()
}

/// Waits until this process has called a function of the fake driver this many times in total. Only
/// the time limit of the child ends the wait early.
///
/// # Panics
/// If `PEERWEAVE_FAKE_CUDA_LOG` is not set.
pub fn wait_until_entered(function: &str, times: usize) {
    while entered(function) < times {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the index of the body for which this child was started; `None` if this process was not
/// started for a body.
pub(crate) fn call() -> Option<usize> {
    std::env::var(CALL).ok()?.parse().ok()
}

impl Child {
    /// Waits until a file of the shared directory exists, and returns its path. Only the time limit
    /// of the child ends the wait early.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        let path = self.directory.join(name);
        while !path.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        path
    }

    /// Waits until a file of the shared directory exists.
    pub fn wait_for_file(&self, name: &str) {
        let _ = self.file(name);
    }

    /// Writes a file into the shared directory atomically.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn put_file(&self, name: &str, bytes: &[u8]) {
        let hidden = self.directory.join(format!(".{name}.{}", self.rank));
        std::fs::write(&hidden, bytes).expect("the shared directory is writable");
        std::fs::rename(&hidden, self.directory.join(name)).expect("the shared directory is writable");
    }

    /// Returns the job whose PEs are the children. Child 0 runs the server of the job.
    #[must_use]
    pub fn job(&self) -> Job {
        let name = self.directory.to_string_lossy().replace('/', "-");
        let (endpoint, token) = (Endpoint::Unix(name.clone()), Token::derived_from(&name));
        let job = Job::on_one_machine(self.rank as u32, self.count as u32, endpoint, token);
        Job { served: Served::ByPe0, ..job }
    }

    /// Notifies the parent that this child has reached the body for which it was started.
    pub(crate) fn tell_of_its_body(&self) {
        std::fs::write(body_file(&self.directory, self.rank), b"").expect("a file can be created");
    }

    /// Waits until every child has called `meet` with the same `point`. Each point can be used only
    /// once.
    pub fn meet(&self, point: &str) {
        self.put_file(&format!("{point}.{}", self.rank), b"");
        for rank in 0..self.count {
            self.wait_for_file(&format!("{point}.{rank}"));
        }
    }
}

/// Returns the path of the file that marks that a child has reached its body. The file lies next to
/// the shared directory.
fn body_file(shared: &Path, rank: usize) -> PathBuf {
    shared.with_file_name(format!("body.{rank}"))
}

/// Result of a child.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Output {
    /// Exit status of the child.
    pub status: ExitStatus,
    /// Standard output of the child.
    pub stdout: String,
    /// Standard error of the child.
    pub stderr: String,
    /// Whether the child was killed because it exceeded its time limit.
    pub timed_out: bool,
    /// Functions of the fake driver that this child called, in order.
    pub calls: Vec<String>,
    /// Whether the child reached the body for which it was started, if any.
    pub came_to_its_body: bool,
}

impl Output {
    /// Returns whether the child ran exactly one test and the test passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.status.success() && !self.timed_out && self.stdout.contains("test result: ok. 1 passed")
    }
}

impl fmt::Display for Output {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = if self.timed_out { "killed at its time limit" } else { "ended" };
        write!(out, "{ended}, {}\n--- stdout\n{}\n--- stderr\n{}", self.status, self.stdout, self.stderr)
    }
}

struct Running {
    process: std::process::Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

/// Starts the children, waits for all of them, and kills those that exceed the time limit.
pub(crate) fn run_all(
    count: usize,
    scenario: &str,
    shared: &Path,
    variables: &BTreeMap<String, Option<OsString>>,
    limit: Duration,
) -> Vec<Output> {
    let above = shared.parent().expect("the shared directory has a parent");
    let log = match variables.get(LOG) {
        Some(Some(path)) => PathBuf::from(path),
        _ => above.join("calls"),
    };
    let binary = std::env::current_exe().expect("the path of this test binary is known");
    let mut running = Vec::new();
    for rank in 0..count {
        let stdout = above.join(format!("stdout.{rank}"));
        let stderr = above.join(format!("stderr.{rank}"));
        let mut command = Command::new(&binary);
        command
            .args([scenario, "--exact", "--nocapture", "--test-threads=1", "--include-ignored"])
            .stdin(Stdio::null())
            .stdout(File::create(&stdout).expect("a file for the output can be created"))
            .stderr(File::create(&stderr).expect("a file for the output can be created"))
            // `CUDA_VISIBLE_DEVICES` of a machine with real devices must not hide devices of the
            // fake. Only a test may set it for its children.
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove(CALL)
            .env(LOG, &log)
            .env(SCENARIO, scenario)
            .env(RANK, rank.to_string())
            .env(COUNT, count.to_string())
            .env(DIRECTORY, shared);
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let process = command.spawn().unwrap_or_else(|error| panic!("cannot start {}: {error}", binary.display()));
        running.push(Running { process, stdout, stderr });
    }
    let deadline = Instant::now() + limit;
    let ends: Vec<(ExitStatus, bool)> = running.iter_mut().map(|child| end(&mut child.process, deadline)).collect();
    let calls = std::fs::read_to_string(&log).unwrap_or_default();
    // Each line has a process ID and a function. The code of a failed call is on a separate line.
    let calls_of = |process: u32| {
        let prefix = format!("{process} ");
        let mine = calls.lines().filter(|line| !line.contains(" = ")).filter_map(|line| line.strip_prefix(&prefix));
        mine.map(str::to_owned).collect()
    };
    let text = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    running
        .into_iter()
        .zip(ends)
        .enumerate()
        .map(|(rank, (child, (status, timed_out)))| Output {
            status,
            stdout: text(&child.stdout),
            stderr: text(&child.stderr),
            timed_out,
            calls: calls_of(child.process.id()),
            came_to_its_body: body_file(shared, rank).exists(),
        })
        .collect()
}

/// Waits for a child until the deadline, then kills it.
fn end(process: &mut std::process::Child, deadline: Instant) -> (ExitStatus, bool) {
    loop {
        if let Some(status) = process.try_wait().expect("the process is a child of this process") {
            return (status, false);
        }
        if Instant::now() >= deadline {
            let _ = process.kill();
            return (process.wait().expect("the process is a child of this process"), true);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
