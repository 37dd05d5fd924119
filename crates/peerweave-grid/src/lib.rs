//! Runs grids of kernel threads on the CPU, so that a kernel can be tested without a GPU.
//!
//! A kernel has the same source as on a GPU. It calls `peerweave-device`, whose host side calls
//! this crate for indices, barriers, shuffles, votes and shared memory. Each kernel thread is a
//! coroutine with its own stack. The threads of a grid run one at a time on the thread that called
//! [`run`]. PEs run concurrently, each on its own thread or process.
//!
//! ```text
//!   executor.rs  the functions that kernels call
//!   engine/      runs a grid: mod.rs resumes threads, block.rs has barriers, warps and shared memory,
//!                fiber.rs has the stack of one kernel thread
//!   schedule.rs  the order of threads, from one seed
//!   options.rs   the shape of a grid, its seed and its deadline
//!   context.rs   a kernel's context in this process
//!   job.rs       several PEs on one schedule, for tests
//!   network.rs   puts that arrive late and out of order
//! ```
//!
//! # What it finds
//! - **Races**: [`Options::seed`] varies the order of threads, and the same seed repeats the order.
//!   See [`explore`].
//! - **Divergence**: if not all threads concerned reach a barrier, shuffle or vote, the run fails
//!   with [`GridError::Divergent`]. The run also fails if a thread returns while other threads of
//!   its block wait for it.
//! - **Panics**: a [`GridError::Panicked`] names the block and the thread.
//! - **Endless waits**: a run ends by its deadline.
//! - **Reads of uninitialised shared memory**: its initial content differs by seed.
//!
//! - **Missing fences and quiets between machines**: [`Job::machines_of`] emulates a network, on
//!   which puts can overtake each other.
//!
//! # What it does not find
//! Mapped memory is sequentially consistent among the threads of one grid. So a missing fence is
//! only detected on a GPU or by a model checker. The 16 bytes that a copy moves at a time are not
//! torn, as they may be on a GPU.

/// The README, whose examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod context;
mod engine;
mod error;
mod executor;
mod job;
mod network;
mod options;
mod schedule;

pub use context::{ContextMemory, Epochs, Report, TeamTable};
pub use error::{GridError, ThreadId};
pub use job::{Job, JobError};
pub use options::{Launch, MAX_COOPERATIVE_THREADS, MAX_SHARED_BYTES, Options, Shape};

/// Runs a grid: each of its threads calls the body once. Returns when all threads have returned.
///
/// # Errors
/// [`GridError::Shape`] before any thread runs; otherwise the first failure of a thread, or
/// [`GridError::Deadline`]. Threads that have not returned are unwound, so destructors in their
/// frames run.
///
/// # Panics
/// If called from inside a kernel.
///
/// ```
/// use peerweave_device::gpu;
/// use peerweave_grid::{Launch, Options, run};
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// let sum = AtomicU32::new(0);
/// let body = || {
///     // Each block adds the numbers of its threads once.
///     if gpu::sync_threads_or(gpu::thread_idx().x == 5) {
///         sum.fetch_add(gpu::thread_idx().x, Ordering::Relaxed);
///     }
/// };
/// run(&Launch::new("sum", 2, 8, &body), &Options::default().seed(7))?;
/// assert_eq!(sum.into_inner(), 2 * 28);
/// # Ok::<(), peerweave_grid::GridError>(())
/// ```
pub fn run(launch: &Launch<'_>, options: &Options<'_>) -> Result<(), GridError> {
    run_together(std::slice::from_ref(launch), options)
}

/// Runs several grids whose threads share one schedule. The grids behave like kernels of several
/// PEs, but reproducibly.
///
/// At least one block of each grid runs until the grid ends, so the grids may wait for each other
/// as PEs do.
///
/// # Errors
/// As for [`run`]; a failure of one grid ends all grids.
///
/// # Panics
/// As for [`run`].
pub fn run_together(launches: &[Launch<'_>], options: &Options<'_>) -> Result<(), GridError> {
    launches.iter().try_for_each(Launch::check)?;
    executor::install();
    engine::run(launches, options)
}

/// Calls `test` with each of the seeds `0..seeds`, and panics with the seed if the test fails. For
/// tests that search for races.
///
/// # Panics
/// If `test` returns an error. A panic of `test` itself is propagated after the seed was printed to
/// standard error.
///
/// ```
/// use peerweave_grid::{Launch, Options, explore, run};
///
/// explore(20, |seed| run(&Launch::new("nothing", 1, 64, &|| ()), &Options::default().seed(seed)));
/// ```
#[track_caller]
pub fn explore<E: std::fmt::Display>(seeds: u64, mut test: impl FnMut(u64) -> Result<(), E>) {
    struct Announce(u64);
    impl Drop for Announce {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the schedule of seed {} failed", self.0);
            }
        }
    }
    for seed in 0..seeds {
        let announce = Announce(seed);
        let outcome = test(seed);
        std::mem::forget(announce);
        if let Err(error) = outcome {
            panic!("seed {seed}: {error}");
        }
    }
}
