//! Why a grid ended before all of its threads had returned.

use peerweave_types::Dim3;
use std::fmt;
use std::time::Duration;

/// A thread of a grid: its block and its index in the block.
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

/// Why a grid did not run to its end. Every message names the kernel.
///
/// The seed is in the messages that depend on the schedule: a run with the same seed repeats the schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GridError {
    /// The launch itself is wrong; nothing ran.
    #[error("{kernel}: {what} is {found}, expected {expected}")]
    Shape {
        /// The kernel.
        kernel: String,
        /// The parameter.
        what: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// A thread panicked, or called `trap`.
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
    /// Threads that must reach the same barrier, shuffle or vote together did not.
    #[error("{kernel}: {at}: {what} (seed {seed})")]
    Divergent {
        /// The kernel.
        kernel: String,
        /// The thread that showed it.
        at: ThreadId,
        /// What it did, and what the others did.
        what: String,
        /// The seed of the schedule.
        seed: u64,
    },
    /// The deadline of the grid expired.
    #[error("{kernel}: timed out after {:.3} s: {state} (seed {seed})", waited.as_secs_f64())]
    Deadline {
        /// The kernel.
        kernel: String,
        /// How long the grid ran.
        waited: Duration,
        /// What its threads were doing.
        state: String,
        /// The seed of the schedule.
        seed: u64,
    },
    /// The stacks of the threads could not be had.
    #[error("{kernel}: no memory for the stack of {at}: {cause}")]
    Stack {
        /// The kernel.
        kernel: String,
        /// The thread.
        at: ThreadId,
        /// What the operating system said.
        cause: String,
    },
}

impl GridError {
    /// The thread at fault, where there is one.
    pub fn thread(&self) -> Option<ThreadId> {
        match self {
            Self::Panicked { at, .. } | Self::Divergent { at, .. } | Self::Stack { at, .. } => Some(*at),
            Self::Shape { .. } | Self::Deadline { .. } => None,
        }
    }
}
