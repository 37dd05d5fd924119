//! Errors of a run of grids.

use peerweave_types::Dim3;
use std::fmt;
use std::time::Duration;

/// Identifies a thread of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId {
    /// Index of the block in the grid.
    pub block: Dim3,
    /// Index of the thread in its block.
    pub thread: Dim3,
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} thread {}", self.block, self.thread)
    }
}

/// The error that a run of grids returns. Every message names the kernel.
///
/// A message that depends on the schedule contains the schedule's seed. A run with the same seed
/// repeats the schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GridError {
    /// A parameter of the launch is invalid, so no thread has run.
    #[error("{kernel}: {what} is {found}, expected {expected}")]
    Shape {
        /// Name of the kernel.
        kernel: String,
        /// Name of the parameter.
        what: &'static str,
        /// Value of the parameter.
        found: String,
        /// Description of valid values.
        expected: String,
    },
    /// A thread has panicked or has called `trap`.
    #[error("{kernel}: {at} panicked: {message} (seed {seed})")]
    Panicked {
        /// Name of the kernel.
        kernel: String,
        /// The thread that panicked.
        at: ThreadId,
        /// The message of the panic.
        message: String,
        /// Seed of the schedule.
        seed: u64,
    },
    /// Threads have diverged: a thread did not reach a barrier, shuffle or vote that the thread
    /// must reach.
    #[error("{kernel}: {at}: {what} (seed {seed})")]
    Divergent {
        /// Name of the kernel.
        kernel: String,
        /// The thread that diverged.
        at: ThreadId,
        /// Description of the divergence: what the thread did, and the state of the other threads.
        what: String,
        /// Seed of the schedule.
        seed: u64,
    },
    /// The run did not end before the deadline ([`Options::deadline`](crate::Options::deadline)).
    #[error("{kernel}: timed out after {:.3} s: {state} (seed {seed})", waited.as_secs_f64())]
    Deadline {
        /// Name of the kernel.
        kernel: String,
        /// Duration of the run.
        waited: Duration,
        /// Description of one running block: its index, and the number of its threads in each
        /// state.
        state: String,
        /// Seed of the schedule.
        seed: u64,
    },
    /// The stack of a thread could not be allocated.
    #[error("{kernel}: cannot allocate the stack of {at}: {cause}")]
    Stack {
        /// Name of the kernel.
        kernel: String,
        /// The thread for which no stack could be allocated.
        at: ThreadId,
        /// The error of the operating system.
        cause: String,
    },
}

impl GridError {
    /// Returns the thread that the error names, if any.
    pub fn thread(&self) -> Option<ThreadId> {
        match self {
            Self::Panicked { at, .. } | Self::Divergent { at, .. } | Self::Stack { at, .. } => Some(*at),
            Self::Shape { .. } | Self::Deadline { .. } => None,
        }
    }
}
