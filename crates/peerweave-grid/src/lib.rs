//! Runs grids of kernel threads on the CPU, so that a kernel can be tested without a GPU.
//!
//! The kernel has the same source as on a GPU. The kernel calls `peerweave-device`, whose host
//! implementation calls this crate for indices, barriers, shuffles, votes and shared memory. Each
//! kernel thread is a coroutine with its own stack. All threads of a grid run on the host thread
//! that called [`run`], one at a time. PEs may run on several host threads or in several processes.
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
//! # Errors that a run finds
//! - **Races**: [`Options::seed`] varies the order of threads, and the same seed repeats the order.
//!   [`explore`] runs a test with many seeds.
//! - **Divergence**: if a thread does not reach a barrier, shuffle or vote that it must reach, the
//!   run fails with [`GridError::Divergent`]. The run also fails if a thread returns while other
//!   threads of its block wait for that thread.
//! - **Panics**: [`GridError::Panicked`] names the block and the thread.
//! - **Endless waits**: a run fails at its deadline.
//! - **Reads of uninitialised shared memory**: the initial content of shared memory depends on the
//!   seed, so the results of such reads vary.
//!
//! - **Missing fences and quiets between machines**: [`Job::machines_of`] emulates a network, on
//!   which a put can overtake another put.
//!
//! # Errors that a run does not find
//! Mapped memory is sequentially consistent among the threads of one run. So only a GPU or a model
//! checker can detect missing fences on mapped memory. On a GPU, an access of 16 bytes in a copy
//! may be torn: another thread may see only one half. In one run on the host, such an access is not
//! torn.

/// Runs the examples of the README as tests.
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

/// Runs a grid. Each thread of the grid calls the body of the launch once. Returns when all threads
/// have returned.
///
/// # Errors
/// [`GridError::Shape`] if the launch is invalid; in this case no thread has run. Otherwise, the
/// error of the first thread that has failed, or [`GridError::Deadline`] if the run has not ended
/// before its deadline. After a failure the remaining threads are unwound, so that the destructors
/// in their frames run.
///
/// # Panics
/// If a kernel calls this function.
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

/// Runs several grids concurrently, like the kernels of several PEs. One schedule determines the
/// order of all their threads, so the same seed repeats the same execution.
///
/// At any time, at least one block of each unfinished grid is running. So the grids may wait for
/// each other, like PEs.
///
/// # Errors
/// As for [`run`]. A failure of one grid ends all grids.
///
/// # Panics
/// As for [`run`].
pub fn run_together(launches: &[Launch<'_>], options: &Options<'_>) -> Result<(), GridError> {
    launches.iter().try_for_each(Launch::check)?;
    executor::install();
    engine::run(launches, options)
}

/// Calls `test` with each of the seeds `0..seeds`, to search for races. Stops at the first failure.
///
/// # Panics
/// If `test` returns an error; the message contains the seed. If `test` panics: the seed is printed
/// to standard error, and the panic propagates.
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
                eprintln!("explore: the test panicked with seed {}", self.0);
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
