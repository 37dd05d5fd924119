//! What a job may not leave behind: files, sockets, processes. Other programs of this machine do
//! not count, whatever they do meanwhile: the processes of a job have a directory of their own for
//! temporary files, and elsewhere only what bears our name is looked at.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The directory for temporary files of the job that meets at this socket. It is removed with the
/// job, if it is empty.
pub fn directory(socket: &str) -> PathBuf {
    std::env::temp_dir().join(format!("{socket}-files"))
}

/// What was there before a job.
#[derive(Debug)]
pub struct Before {
    files: BTreeSet<String>,
}

impl Before {
    /// Looks.
    pub fn now() -> Self {
        Self { files: files() }
    }

    /// Asserts that nothing new is there: no file, no socket with this name, no process with this
    /// mark in its environment.
    ///
    /// # Panics
    /// Where something is.
    pub fn assert_nothing_new(&self, socket: &str, mark: &str) {
        let new: Vec<_> = files().difference(&self.files).cloned().collect();
        assert!(new.is_empty(), "left behind: {new:?}");
        let directory = directory(socket);
        let left: Vec<_> = fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        assert!(!directory.exists(), "left behind in {}: {left:?}", directory.display());
        soon("no process of the job remains", || {
            let left = processes(mark);
            if left.is_empty() { Ok(()) } else { Err(format!("processes {left:?}")) }
        });
        soon("no socket of the job remains", || {
            let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
            let left: Vec<_> = sockets.lines().filter(|line| line.contains(socket)).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("sockets {left:?}")) }
        });
    }
}

/// Files of shared memory that bear our name.
fn files() -> BTreeSet<String> {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.path().display().to_string());
    names.filter(|name| name.contains("peerw")).collect()
}

/// Processes whose environment contains `mark`, other than this one.
pub fn processes(mark: &str) -> Vec<u32> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|&pid| pid != own)
        .filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.windows(mark.len()).any(|window| window == mark.as_bytes())
        })
        .collect()
}

/// The job has ended: what it left is there for good. The time is for a machine on which other
/// programs keep all processors busy.
fn soon(what: &str, holds: impl Fn() -> Result<(), String>) {
    let end = Instant::now() + Duration::from_secs(20);
    while let Err(found) = holds() {
        assert!(Instant::now() < end, "not so: {what}: {found}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
