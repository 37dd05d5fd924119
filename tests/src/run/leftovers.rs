//! Finds files, sockets and processes that a job left behind. Files of other programs on this
//! machine are ignored: each job has its own directory for temporary files, and elsewhere only
//! files with this project's name are examined.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Returns the directory for temporary files of the job with this socket. The directory is removed
/// with the job if it is empty.
pub fn directory(socket: &str) -> PathBuf {
    std::env::temp_dir().join(format!("{socket}-files"))
}

/// The files of shared memory that existed before a job.
#[derive(Debug)]
pub struct Before {
    files: BTreeSet<String>,
}

impl Before {
    /// Records the files that exist now.
    pub fn now() -> Self {
        Self { files: files() }
    }

    /// Asserts that there is no new file, no socket with this name, and no process with this mark
    /// in its environment.
    ///
    /// # Panics
    /// If one of these exists.
    pub fn assert_nothing_new(&self, socket: &str, mark: &str) {
        let new: Vec<_> = files().difference(&self.files).cloned().collect();
        assert!(new.is_empty(), "files left behind: {new:?}");
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

/// Returns the files in `/dev/shm` with this project's name.
fn files() -> BTreeSet<String> {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.path().display().to_string());
    names.filter(|name| name.contains("peerw")).collect()
}

/// Returns the IDs of the processes other than this one whose environment contains `mark`.
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

/// Polls `holds` until it succeeds, for at most 20 seconds. That is long enough even if all
/// processors of the machine are busy.
fn soon(what: &str, holds: impl Fn() -> Result<(), String>) {
    let end = Instant::now() + Duration::from_secs(20);
    while let Err(found) = holds() {
        assert!(Instant::now() < end, "timed out waiting until {what}: found {found}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
