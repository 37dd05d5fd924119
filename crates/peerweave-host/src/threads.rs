//! Runs PEs as threads of one process, for tests and for learning.

use crate::backend::{Host, HostOptions};
use peerweave_core::backend::Backend;
use peerweave_core::{Error, World};
use std::sync::Arc;

/// Runs `program` once for each PE. Each PE has its own thread and its own world. Returns the
/// results in the order of the PEs.
///
/// A PE that panics leaves the job, so the other PEs get an error that names the PE that panicked.
/// When all threads have ended, the panic continues on the calling thread.
///
/// Each call creates a new job, so a process may call this function several times.
///
/// # Errors
/// [`Error::Misuse`] if `n_pes` is 0 or too large, or if the heaps are too large. [`Error::System`]
/// if the shared memory cannot be mapped. [`Error::Aborted`] if a PE has aborted the job, even if
/// other PEs have returned results or panicked. Other errors that `program` returns are in the
/// results.
///
/// ```
/// use peerweave::host::{HostOptions, on_threads};
/// use peerweave::{ReduceOp, Result};
///
/// let sums: Vec<Result<u64>> = on_threads(3, &HostOptions::default(), |world| {
///     let mut sum = [0u64];
///     world.team().all_reduce_blocking(&[u64::from(world.my_pe().get()) + 1], &mut sum, ReduceOp::Sum)?;
///     Ok(sum[0])
/// })?;
/// assert!(sums.into_iter().all(|sum| sum.is_ok_and(|sum| sum == 6)));
/// # Ok::<(), peerweave::Error>(())
/// ```
pub fn on_threads<R: Send>(n_pes: usize, options: &HostOptions, program: impl Fn(World) -> R + Sync) -> Result<Vec<R>, Error> {
    let hosts = Host::threads(n_pes, options)?;
    let aborted = hosts[0].abort_word();
    let worlds = hosts.into_iter().map(|host| World::new(Arc::new(host)));
    let worlds: Vec<World> = worlds.collect::<Result<_, _>>()?;
    let program = &program;
    std::thread::scope(|scope| {
        let threads: Vec<_> = worlds.into_iter().map(|world| scope.spawn(move || program(world))).collect();
        // All threads are joined before the first panic continues.
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        // The abort takes precedence, because a PE may panic because of the abort, for example in
        // `unwrap`.
        if let Some(aborted) = aborted.error() {
            return Err(aborted);
        }
        Ok(ended.into_iter().map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect())
    })
}
