//! The shape of a grid, the launch of a grid, and the options of a run.

use crate::error::GridError;
use peerweave_types::Dim3;
use std::fmt;
use std::time::Duration;

/// Maximum size of the dynamic shared memory of a block, in bytes. This is the limit of GPUs with
/// compute capability 9.0.
pub const MAX_SHARED_BYTES: usize = 227 << 10;
/// Maximum number of threads of a cooperative grid. The number is limited because all threads of
/// such a grid need their stacks at the same time.
pub const MAX_COOPERATIVE_THREADS: u64 = 16384;

/// The shape of a launch: number of blocks, number of threads per block, size of dynamic shared
/// memory, and whether blocks may wait for each other.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub(crate) grid: Dim3,
    pub(crate) block: Dim3,
    pub(crate) shared_bytes: usize,
    pub(crate) cooperative: bool,
}

impl Shape {
    /// Returns a shape of `grid` blocks, each with `block` threads.
    pub fn new(grid: impl Into<Dim3>, block: impl Into<Dim3>) -> Self {
        Self { grid: grid.into(), block: block.into(), shared_bytes: 0, cooperative: false }
    }

    /// Sets the size of each block's dynamic shared memory to `bytes` bytes. The initial content of
    /// the memory is unspecified.
    #[must_use]
    pub fn shared_bytes(mut self, bytes: usize) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// Sets whether the grid is cooperative: all blocks of a cooperative grid run at the same time,
    /// so that they may wait for each other.
    #[must_use]
    pub fn cooperative(mut self, cooperative: bool) -> Self {
        self.cooperative = cooperative;
        self
    }
}

/// A launch of one grid: its name, its shape, and the function that each of its threads calls.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    pub(crate) name: &'a str,
    pub(crate) shape: Shape,
    pub(crate) body: &'a dyn Fn(),
}

impl<'a> Launch<'a> {
    /// Returns a launch of `grid` blocks, each with `block` threads. Each thread calls `body`.
    /// Error messages contain `name`.
    pub fn new(name: &'a str, grid: impl Into<Dim3>, block: impl Into<Dim3>, body: &'a dyn Fn()) -> Self {
        Self::shaped(name, Shape::new(grid, block), body)
    }

    /// Returns a launch with the shape `shape`. Each thread calls `body`. Error messages contain
    /// `name`.
    pub fn shaped(name: &'a str, shape: Shape, body: &'a dyn Fn()) -> Self {
        Self { name, shape, body }
    }

    /// Fails with [`GridError::Shape`] if no GPU can run the shape, or if a cooperative grid has
    /// too many threads.
    pub(crate) fn check(&self) -> Result<(), GridError> {
        let wrong = |what, found: String, expected: String| {
            Err(GridError::Shape { kernel: self.name.to_string(), what, found, expected })
        };
        let Shape { grid, block, shared_bytes, cooperative } = self.shape;
        if !grid.is_grid() {
            return wrong("the grid", grid.to_string(), "from (1, 1, 1) to (2147483647, 65535, 65535) blocks".to_string());
        }
        if !block.is_block() {
            return wrong(
                "the block",
                block.to_string(),
                "from (1, 1, 1) to (1024, 1024, 64) threads, and at most 1024 threads in total".to_string(),
            );
        }
        if shared_bytes > MAX_SHARED_BYTES {
            let expected = format!("at most {MAX_SHARED_BYTES} bytes");
            return wrong("dynamic shared memory", shared_bytes.to_string(), expected);
        }
        let threads = grid.count().saturating_mul(block.count());
        if cooperative && threads > MAX_COOPERATIVE_THREADS {
            let expected = format!("at most {MAX_COOPERATIVE_THREADS} threads, because all blocks run at the same time");
            return wrong("the size of the cooperative grid", format!("{threads} threads"), expected);
        }
        Ok(())
    }
}

impl fmt::Debug for Launch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch").field("name", &self.name).field("shape", &self.shape).finish()
    }
}

/// Options of a run: its schedule and its limits.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Options<'a> {
    /// Seed of the schedule. Runs with the same seed have the same order of threads, unless the
    /// order depends on another process or a clock. With seed 0, threads run in the order in which
    /// they become runnable, which is at first the order of their indices. Other seeds differ in
    /// which threads run first and in how often threads are preempted.
    pub seed: u64,
    /// Time after which the run fails with [`GridError::Deadline`]. The run can end a thread only
    /// at an atomic access, a pause or a synchronisation. The run cannot end a thread in a loop
    /// without these operations.
    pub deadline: Duration,
    /// Stack size of each thread in bytes. A stack overflow ends the process.
    pub stack_bytes: usize,
    /// Approximate maximum number of threads that are started and have not returned. A cooperative
    /// grid may exceed this number, because all its blocks start at once. At least one block of
    /// each unfinished grid is always started, even if this number is too small for the block.
    pub resident_threads: usize,
    /// Function that the run calls when every thread waits for memory to change.
    pub on_idle: Option<&'a dyn Fn()>,
}

impl Default for Options<'_> {
    /// Returns the default options: seed 0, a deadline of 60 s, stacks of 256 KiB, and 4096
    /// resident threads.
    fn default() -> Self {
        Self { seed: 0, deadline: Duration::from_secs(60), stack_bytes: 256 << 10, resident_threads: 4096, on_idle: None }
    }
}

impl<'a> Options<'a> {
    /// Sets the seed of the schedule.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the time after which the run fails.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the stack size of each thread in bytes.
    #[must_use]
    pub fn stack_bytes(mut self, bytes: usize) -> Self {
        self.stack_bytes = bytes;
        self
    }

    /// Sets the function that the run calls when every thread waits for memory to change.
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
