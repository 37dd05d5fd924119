//! Errors of running a grid.

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

/// A grid failed. Every message names the kernel.
///
/// Messages that depend on the schedule have its seed; a run with the same seed repeats the
/// schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GridError {
    /// The launch is invalid; nothing ran.
    #[error("{kernel}: {what} is {found}, expected {expected}")]
    Shape {
        /// The kernel.
        kernel: String,
        /// The parameter.
        what: &'static str,
        /// The value of the parameter.
        found: String,
        /// Description of valid values.
        expected: String,
    },
    /// A thread panicked or called `trap`.
    #[error("{kernel}: {at} panicked: {message} (seed {seed})")]
    Panicked {
        /// The kernel.
        kernel: String,
        /// The thread.
        at: ThreadId,
        /// The message of the panic.
        message: String,
        /// The seed of the schedule.
        seed: u64,
    },
    /// Threads diverged: not all of them reached the same barrier, shuffle or vote.
    #[error("{kernel}: {at}: {what} (seed {seed})")]
    Divergent {
        /// The kernel.
        kernel: String,
        /// The thread that diverged.
        at: ThreadId,
        /// State of the thread and of the other threads.
        what: String,
        /// The seed of the schedule.
        seed: u64,
    },
    /// The deadline of the grid passed.
    #[error("{kernel}: timed out after {:.3} s: {state} (seed {seed})", waited.as_secs_f64())]
    Deadline {
        /// The kernel.
        kernel: String,
        /// Time that the grid ran.
        waited: Duration,
        /// State of the grid's threads.
        state: String,
        /// The seed of the schedule.
        seed: u64,
    },
    /// The stack of a thread could not be allocated.
    #[error("{kernel}: cannot allocate the stack of {at}: {cause}")]
    Stack {
        /// The kernel.
        kernel: String,
        /// The thread.
        at: ThreadId,
        /// The error of the operating system.
        cause: String,
    },
}

impl GridError {
    /// Returns the thread at fault, if any.
    pub fn thread(&self) -> Option<ThreadId> {
        match self {
            Self::Panicked { at, .. } | Self::Divergent { at, .. } | Self::Stack { at, .. } => Some(*at),
            Self::Shape { .. } | Self::Deadline { .. } => None,
        }
    }
}
