//! Starts the PEs of this machine, watches them to their end, and leaves nothing behind. Knows nothing of what they compute.
//!
//! Invariant: whoever ends first, and however, when [`supervise`] returns there is no process left that it started, nor one that
//! those started. Where the launcher itself is killed, the kernel ends the PEs and the guard ([`guard`]) what is in their
//! process groups; what has left its group by then (`setsid`) is out of reach.
//!
//! One thread does all of it, around one `poll`: pipes, signals, deadlines. So lines cannot interleave and no lock is needed.

pub mod ending;
pub mod guard;
mod last_line;
mod lines;
pub mod output;
pub mod program;
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

/// What to start.
#[derive(Debug)]
pub struct Launch {
    /// The executable file.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// How many processes are started here.
    pub n_local: usize,
    /// The PE of the first of them.
    pub first_pe: usize,
    /// Number of PEs of the whole job.
    pub n_pes: usize,
    /// Which machine this is.
    pub machine: usize,
    /// Number of machines.
    pub n_machines: usize,
    /// What every PE finds in its environment besides who it is.
    pub env: Vec<(OsString, OsString)>,
    /// End everything after this time.
    pub timeout: Option<Duration>,
    /// What the first PE reads.
    pub stdin: Stdin,
    /// Whether the only PE writes to the launcher's own standard output and error, and not to pipes.
    pub direct_output: bool,
}

/// What the first PE finds as its standard input. The others find nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// The launcher's own.
    Pass,
    /// Nothing.
    Nothing,
}

/// Where a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A PE's standard output.
    Stdout,
    /// A PE's standard error.
    Stderr,
}

/// Who receives what the PEs print, and hears of the one that fails.
pub trait Attendant {
    /// A whole line of `pe`, without its end. What is to be printed goes to `output`.
    fn line(&mut self, pe: usize, source: Source, line: &[u8], output: &mut Output);

    /// `pe` has failed: the peers are to be told. Called for each PE that fails, as it is seen. Returns the PE that left the job before any other, where
    /// that is known.
    fn failed(&mut self, pe: usize, why: &str) -> Option<usize>;

    /// The prefix of messages of the launcher.
    fn name(&self) -> &'static str;
}

/// Why the PEs could not be started or watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A process could not be started.
    #[error("cannot start PE {pe} ({program}): {source}")]
    Spawn {
        /// The PE.
        pe: usize,
        /// The executable file.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused something that the launcher needs.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl LaunchError {
    /// Names what was tried.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
