//! What a run of grids is given: the grids, and how their threads take turns.

use crate::error::GridError;
use peerweave_types::Dim3;
use std::fmt;
use std::time::Duration;

/// Largest dynamic shared memory of a block, in bytes: what a GPU with compute capability 9.0
/// allows.
pub const MAX_SHARED_BYTES: usize = 227 << 10;
/// Largest number of threads of a cooperative grid: each needs a stack at the same time.
pub const MAX_COOPERATIVE_THREADS: u64 = 16384;

/// The shape of a launch: blocks, threads of a block, dynamic shared memory, and whether blocks may
/// wait for each other.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub(crate) grid: Dim3,
    pub(crate) block: Dim3,
    pub(crate) shared_bytes: usize,
    pub(crate) cooperative: bool,
}

impl Shape {
    /// `grid` blocks of `block` threads.
    pub fn new(grid: impl Into<Dim3>, block: impl Into<Dim3>) -> Self {
        Self { grid: grid.into(), block: block.into(), shared_bytes: 0, cooperative: false }
    }

    /// Gives each block `bytes` of dynamic shared memory. Its content is not zeros.
    #[must_use]
    pub fn shared_bytes(mut self, bytes: usize) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// Keeps all blocks under way at the same time, so that they may wait for each other.
    #[must_use]
    pub fn cooperative(mut self, cooperative: bool) -> Self {
        self.cooperative = cooperative;
        self
    }
}

/// One grid: its shape, and what each of its threads calls.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    pub(crate) name: &'a str,
    pub(crate) shape: Shape,
    pub(crate) body: &'a dyn Fn(),
}

impl<'a> Launch<'a> {
    /// A grid of `grid` blocks of `block` threads, each of which calls `body`. `name` is for
    /// messages.
    pub fn new(name: &'a str, grid: impl Into<Dim3>, block: impl Into<Dim3>, body: &'a dyn Fn()) -> Self {
        Self::shaped(name, Shape::new(grid, block), body)
    }

    /// A grid of this shape, of which each thread calls `body`. `name` is for messages.
    pub fn shaped(name: &'a str, shape: Shape, body: &'a dyn Fn()) -> Self {
        Self { name, shape, body }
    }

    /// Refuses shapes that no GPU runs.
    pub(crate) fn check(&self) -> Result<(), GridError> {
        let wrong = |what, found: String, expected: String| {
            Err(GridError::Shape { kernel: self.name.to_string(), what, found, expected })
        };
        let Shape { grid, block, shared_bytes, cooperative } = self.shape;
        if !grid.is_grid() {
            return wrong("the grid", grid.to_string(), "1 to (2147483647, 65535, 65535) blocks".to_string());
        }
        if !block.is_block() {
            return wrong("the block", block.to_string(), "1 to (1024, 1024, 64), and 1024 threads at most".to_string());
        }
        if shared_bytes > MAX_SHARED_BYTES {
            let expected = format!("at most {MAX_SHARED_BYTES} bytes");
            return wrong("dynamic shared memory", shared_bytes.to_string(), expected);
        }
        let threads = grid.count().saturating_mul(block.count());
        if cooperative && threads > MAX_COOPERATIVE_THREADS {
            let expected = format!("at most {MAX_COOPERATIVE_THREADS} threads, since all blocks are under way at the same time");
            return wrong("the cooperative grid", format!("{threads} threads"), expected);
        }
        Ok(())
    }
}

impl fmt::Debug for Launch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch").field("name", &self.name).field("shape", &self.shape).finish()
    }
}

/// How the threads of a run take turns, and when it gives up.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Options<'a> {
    /// Chooses the schedule. A run with the same seed repeats the order of its threads, as far as
    /// it depends on no other process or clock. Seed 0 runs threads in order; every other seed is
    /// different in preferences and in how often threads switch.
    pub seed: u64,
    /// After this long the run ends with [`GridError::Deadline`]. A thread is ended where it next
    /// accesses memory atomically, pauses or synchronises: a loop that does none of these cannot be
    /// ended.
    pub deadline: Duration,
    /// Bytes of stack of each thread. A thread that needs more ends the process.
    pub stack_bytes: usize,
    /// About how many threads are under way at the same time, where the grid is not cooperative. At
    /// least one block is.
    pub resident_threads: usize,
    /// Called when every thread waits for a change of memory.
    pub on_idle: Option<&'a dyn Fn()>,
}

impl Default for Options<'_> {
    /// Seed 0, 60 s, stacks of 256 KiB, 4096 threads at a time.
    fn default() -> Self {
        Self { seed: 0, deadline: Duration::from_secs(60), stack_bytes: 256 << 10, resident_threads: 4096, on_idle: None }
    }
}

impl<'a> Options<'a> {
    /// The options with another seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The options with another deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The options with another stack size, in bytes.
    #[must_use]
    pub fn stack_bytes(mut self, bytes: usize) -> Self {
        self.stack_bytes = bytes;
        self
    }

    /// The options with a function that is called when every thread waits.
    #[must_use]
    pub fn on_idle(mut self, on_idle: &'a dyn Fn()) -> Self {
        self.on_idle = Some(on_idle);
        self
    }
}

impl fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("seed", &self.seed)
            .field("deadline", &self.deadline)
            .field("stack_bytes", &self.stack_bytes)
            .field("resident_threads", &self.resident_threads)
            .finish_non_exhaustive()
    }
}
