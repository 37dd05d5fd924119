//! What a job may not leave behind: files, sockets, processes. Looks at this machine, so that only what bears our name or the job's mark counts.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

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

    /// Asserts that nothing new is there: no file, no socket with this name, no process with this mark in its environment.
    ///
    /// # Panics
    /// Where something is.
    pub fn assert_nothing_new(&self, socket: &str, mark: &str) {
        let new: Vec<_> = files().difference(&self.files).cloned().collect();
        assert!(new.is_empty(), "left behind: {new:?}");
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

/// Files in the places where shared memory and temporary files are, that bear our name.
fn files() -> BTreeSet<String> {
    let directories = ["/dev/shm".into(), std::env::temp_dir()];
    let entries = directories.iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten().flatten();
    let names = entries.map(|entry| entry.path().display().to_string());
    // A build directory or somebody's notes are no leftovers of a job.
    names.filter(|name| name.starts_with("/dev/shm/") || name.contains("peerw")).collect()
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

fn soon(what: &str, holds: impl Fn() -> Result<(), String>) {
    let end = Instant::now() + Duration::from_secs(2);
    while let Err(found) = holds() {
        assert!(Instant::now() < end, "not so: {what}: {found}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
