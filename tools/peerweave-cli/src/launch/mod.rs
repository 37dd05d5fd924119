//! Starts the PEs of this machine, watches them until they end, and cleans up.
//! Invariant: when [`supervise`] returns, the processes that it started and all their descendants
//! have ended. If the launcher itself is killed, the operating system kills the PEs, and the guard
//! process ([`guard`]) kills all other processes in the PEs' process groups. In this case,
//! processes that have left these groups (`setsid`) survive. If the only PE of this machine reads
//! the terminal directly, it has no group of its own, and all processes that it started survive.
//!
//! One thread handles pipes, signals and deadlines in one `poll` loop, so lines cannot interleave
//! and no lock is needed.

pub mod ending;
pub mod guard;
mod last_line;
mod lines;
pub mod output;
pub mod program;
pub mod rendezvous;
mod signals;
mod spawn;
mod supervise;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use ending::{Ending, Failure, Status};
pub use output::{Output, Target};
pub use supervise::supervise;

/// Describes the processes to start on this machine: their program, environment and standard
/// streams, the time limit, and what happens if a PE fails.
#[derive(Debug)]
pub struct Launch {
    /// The executable file.
    pub program: PathBuf,
    /// Arguments of the program.
    pub args: Vec<OsString>,
    /// Number of processes to start on this machine.
    pub n_local: usize,
    /// Index of the first PE on this machine.
    pub first_pe: usize,
    /// Number of PEs of the whole job.
    pub n_pes: usize,
    /// Index of this machine.
    pub machine: usize,
    /// Number of machines.
    pub n_machines: usize,
    /// Additional environment variables of every PE.
    pub env: Vec<(OsString, OsString)>,
    /// Time after which the job is stopped.
    pub timeout: Option<Duration>,
    /// What happens to the other PEs when one PE has failed.
    pub on_failure: OnFailure,
    /// Standard input of the first PE.
    pub stdin: Stdin,
    /// Whether the PE writes directly to the launcher's standard output and standard error, without
    /// pipes. Requires that this machine has only one PE.
    pub direct_output: bool,
}

/// What happens to the other PEs when one PE has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnFailure {
    /// End the other PEs; the job fails
    #[default]
    Abort,
    /// Let the other PEs continue; the job succeeds if at least one PE succeeds
    Continue,
}

/// Standard input of the first PE. The standard input of all other PEs is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// The standard input of the launcher.
    Pass,
    /// An empty standard input.
    Nothing,
}

/// The stream to which a PE has written a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A PE's standard output.
    Stdout,
    /// A PE's standard error.
    Stderr,
}

/// Receives the output of the PEs and their failures.
pub trait Observer {
    /// Handles one line of output that `pe` has written. `line` does not contain the line end. The
    /// launcher prints the text that the function adds to `output`.
    fn line(&mut self, pe: usize, source: Source, line: &[u8], output: &mut Output);

    /// Notifies the peers that `pe` has failed. Called once for each PE that fails, when the
    /// launcher detects the exit of the PE. Returns the PE that was lost first, if known.
    fn failed(&mut self, pe: usize, why: &str) -> Option<usize>;

    /// Returns the PE that ended the job by `World::abort`, and the code that this PE passed.
    /// Returns `None` if no abort is known.
    fn aborted(&self) -> Option<(usize, u8)> {
        None
    }

    /// Returns the prefix of the launcher's messages.
    fn name(&self) -> &'static str;
}

/// The error if the PEs could not be started or watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The process of a PE could not be started.
    #[error("cannot start PE {pe} ({program}): {source}")]
    Spawn {
        /// Index of the PE.
        pe: usize,
        /// The executable file.
        program: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A system call of the launcher failed.
    #[error("{what}: {source}")]
    System {
        /// The failed step, such as `cannot install signal handlers`.
        what: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl LaunchError {
    /// Returns a function for `map_err`, which creates a [`LaunchError`] from an error of the
    /// operating system. `what` describes the step that failed.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
