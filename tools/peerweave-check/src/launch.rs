//! Runs the PEs of a check: starts one process of this program for each PE, and waits for all of
//! them.
//!
//! Invariant: no process outlives its launcher, and every wait has a limit.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use peerweave_bootstrap::Server;

use crate::Failure;

/// Environment variable that marks a process as a PE. [`processes`] sets it in the processes that
/// it starts.
const PE: &str = "PEERWEAVE_CHECK_PE";

/// Returns whether this process is a PE that [`processes`] started.
pub(crate) fn is_pe() -> bool {
    std::env::var_os(PE).is_some()
}

/// Starts a thread that ends this process after `longest`, even if other threads hang.
pub(crate) fn end_after(longest: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(longest);
        println!("FAILED the process did not end within {longest:?}");
        // SAFETY: the call only ends the process.
        unsafe { libc::_exit(1) }
    });
}

/// A PE that has ended, as [`processes`] returns it.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// The lines of the PE's output that the caller of [`processes`] asked to keep.
    pub(crate) kept: Vec<String>,
}

/// Starts this program again for each PE, with the arguments of this process. Waits for all PEs,
/// but at most for `limit`. Returns the lines of output for which `keeps` returns `true`, and
/// prints all other lines.
pub(crate) fn processes(n_pes: u32, limit: Duration, keeps: fn(&str) -> bool) -> Result<Vec<Ended>, Failure> {
    let (_server, jobs) = Server::on_this_machine(n_pes)?;
    let program = std::env::current_exe()?;
    let mut children = Children(Vec::new());
    let mut readers = Vec::new();
    for job in jobs {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).env(PE, "1").envs(job.to_vars()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("the child process has no pipe for its standard output")?);
        readers.push(std::thread::spawn(move || {
            let mut kept = Vec::new();
            for line in output.lines().map_while(Result::ok) {
                if keeps(&line) {
                    kept.push(line);
                } else {
                    println!("{line}");
                }
            }
            kept
        }));
        children.0.push(child);
    }
    let (start, mut statuses) = (Instant::now(), vec![None; children.0.len()]);
    while statuses.iter().any(Option::is_none) {
        for (child, status) in children.0.iter_mut().zip(&mut statuses).filter(|(_, status)| status.is_none()) {
            *status = child.try_wait()?;
        }
        if start.elapsed() > limit {
            let late: Vec<_> = (0..).zip(&statuses).filter(|(_, status)| status.is_none()).map(|(pe, _): (u32, _)| pe).collect();
            return Err(format!("PEs {late:?} did not end within {limit:?}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let kept = readers.into_iter().map(|reader| reader.join().unwrap_or_default());
    Ok(statuses.into_iter().flatten().zip(kept).map(|(status, kept)| Ended { status, kept }).collect())
}

/// Processes that are killed when this value is dropped.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
