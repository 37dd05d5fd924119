//! Forced teardown of communicators.
//!
//! Invariant: a handle is passed to `ncclCommAbort` at most once. The thread that closes the
//! communicator's gate (its lock) starts the abort. The abort runs on a separate thread if the
//! system can start a thread.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use peerweave_driver::{CudaContext, deadline_after, wait_until};

use crate::Nccl;
use crate::comm::teardown::{Work, is_closed, spawn_background};
use crate::comm::watchdog;
use crate::library::error::{CommunicatorName, NcclError};
use crate::member::membership::{Abort, Handle, Inner, set_current};
use crate::member::state::State;
use crate::sys::ncclResult_t;
/// Time limit of aborts for which the caller sets no limit.
pub(crate) const ABORT_LIMIT: Duration = Duration::from_secs(10);

/// Time for which an abort waits until no thread holds the communicator's lock. After this time,
/// the abort calls `ncclCommAbort` even if threads that may be blocked in NCCL still hold the lock,
/// because such a thread may release the lock only after the abort. On a non-blocking communicator,
/// a thread releases the lock within microseconds.
const ABORT_GRACE: Duration = Duration::from_millis(500);

/// Maximum time for which an abort waits for NCCL to end running work, if captured graphs prevent
/// NCCL from freeing the communicator.
const ABORT_WITH_GRAPHS: Duration = Duration::from_millis(200);

/// Time for which NCCL's threads may still launch work after an abort has started. If captured
/// graphs exist, NCCL does not report the end of the abort. An aborted call on a non-blocking
/// communicator then waits for this time before the call returns.
const LAUNCH_WITH_GRAPHS: Duration = Duration::from_secs(2);

impl Abort {
    /// Waits without a deadline until NCCL has finished the abort of the communicator. A call that
    /// the abort interrupts calls this function before it returns. Until the abort is finished,
    /// NCCL may still launch the work of the interrupted call. After the interrupted call has
    /// returned, the program may reuse the memory of this work.
    ///
    /// If captured graphs use the communicator, NCCL cannot free the communicator, and does not
    /// report the end of the abort. In this case, this function does not wait for that end:
    /// - On a blocking communicator, it waits until the abort has started. From then on, no thread
    ///   launches the work of the interrupted call.
    /// - On a non-blocking communicator, it waits for the time [`LAUNCH_WITH_GRAPHS`] after it has
    ///   found that the abort has started.
    ///
    /// All other waits of this crate for NCCL have a deadline. A deadline here would be unsound,
    /// because NCCL could launch the call's work after the call has returned.
    pub(crate) fn wait(inner: &Inner) {
        let limit = if inner.blocking { Duration::ZERO } else { LAUNCH_WITH_GRAPHS };
        let mut started = None;
        let mut done = || {
            let with_graphs = inner.graphs.load(Ordering::Acquire) != 0 && inner.abort.has_begun.load(Ordering::Acquire);
            let has_launched = with_graphs && started.get_or_insert_with(Instant::now).elapsed() >= limit;
            Ok(has_launched || inner.abort.is_done.load(Ordering::Acquire))
        };
        while wait_until::<Infallible>(deadline_after(ABORT_LIMIT), &mut done) != Ok(true) {
            tracing::error!(communicator = %inner.name, "NCCL has not finished aborting the communicator; calls on the communicator stay blocked, because NCCL may still use the buffers of the calls");
        }
    }
}

/// Aborts the communicators, each on a separate thread. Leaves out communicators that have already
/// been aborted or finalized. Waits for at most `limit`. Returns the number of aborted
/// communicators, or the first error.
pub(crate) fn abort_together(communicators: &[Arc<Inner>], limit: Duration) -> Result<usize, NcclError> {
    let open = |inner: &&Arc<Inner>| inner.nccl.not_forked("abort").is_ok() && inner.gate.close(State::Aborted).is_ok();
    let closed: Vec<Arc<Inner>> = communicators.iter().filter(open).map(Arc::clone).collect();
    abort_closed(&closed, limit).into_iter().collect::<Result<Vec<()>, _>>().map(|aborted| aborted.len())
}

/// Aborts and frees communicators whose gates this thread has closed. Waits for at most `limit`.
/// Returns one result for each communicator, in the same order.
///
/// If captured graphs use a communicator, NCCL frees the communicator only when the graphs are
/// destroyed. For such a communicator, this function waits only until NCCL has ended the running
/// work.
pub(crate) fn abort_closed(communicators: &[Arc<Inner>], limit: Duration) -> Vec<Result<(), NcclError>> {
    const CALL: &str = "abort";
    let start = Instant::now();
    let aborts: Vec<_> = communicators
        .iter()
        .map(|inner| {
            tracing::warn!(communicator = %inner.name, "aborting the communicator");
            let theirs = Arc::clone(inner);
            spawn_background(Work::Abort, move || abort_one(&theirs))
        })
        .collect();
    let rest = || limit.saturating_sub(start.elapsed());
    let wait = |(inner, abort): (&Arc<Inner>, Option<Receiver<_>>)| {
        // No thread could be started. So this thread aborts the communicator, without the time
        // limit, because aborted calls wait for the abort. At process exit NCCL must not be called
        // any more.
        let Some(abort) = abort else {
            return if is_closed() { Err(inner.timeout(CALL, start.elapsed())) } else { abort_one(inner) };
        };
        if inner.graphs.load(Ordering::Acquire) == 0 {
            return abort.recv_timeout(rest()).unwrap_or_else(|_| Err(inner.timeout(CALL, start.elapsed())));
        }
        // NCCL ends running work before it frees the communicator.
        let has_begun = || Ok(inner.abort.has_begun.load(Ordering::Acquire));
        match wait_until::<Infallible>(deadline_after(rest()), has_begun) {
            Ok(true) => abort.recv_timeout(ABORT_WITH_GRAPHS.min(rest())).unwrap_or(Ok(())),
            Ok(false) => Err(inner.timeout(CALL, start.elapsed())),
        }
    };
    communicators.iter().zip(aborts).map(wait).collect()
}

/// Aborts and frees a closed communicator. First waits until no thread holds the communicator's
/// lock. After [`ABORT_GRACE`], this wait ends if every thread that holds the lock may be blocked
/// in NCCL.
///
/// A thread that is blocked in a group holds the locks of all communicators in the group. The abort
/// of one of these communicators unblocks the thread. The other communicators must not be freed
/// before the thread has released its locks. So the communicator with the lowest number is aborted
/// first, and the aborts of the other communicators wait up to [`ABORT_GRACE`] longer.
fn abort_one(inner: &Arc<Inner>) -> Result<(), NcclError> {
    if !inner.gate.drain(ABORT_GRACE) {
        let group = watchdog::stuck_together(inner);
        let is_first = group.iter().all(|other| inner.name.number <= other.name.number);
        tracing::warn!(communicator = %inner.name, others = group.len() - 1, "aborting the communicator while a call is blocked");
        let others: Vec<_> = group.into_iter().filter(|other| !Arc::ptr_eq(other, inner)).collect();
        if !others.is_empty() {
            // This thread does not wait: each abort continues on its own thread.
            let _ = abort_together(&others, Duration::ZERO);
        }
        if !is_first {
            inner.gate.drain(ABORT_GRACE);
        }
    }
    inner.abort.has_begun.store(true, Ordering::Release);
    let aborted = abort_handle(inner.nccl, inner.handle, &inner.context, Some(&inner.name));
    if aborted.is_ok() {
        inner.set_freed();
    }
    inner.abort.is_done.store(true, Ordering::Release);
    aborted
}

/// Aborts and frees communicators that are still being created, given their handles. Returns
/// whether NCCL has aborted all of them within `limit`.
pub(crate) fn abort_handles(nccl: Nccl, handles: Vec<(Handle, Arc<CudaContext>)>, limit: Duration) -> bool {
    let start = Instant::now();
    let aborts: Vec<_> = handles
        .into_iter()
        .map(|(handle, context)| spawn_background(Work::Abort, move || abort_handle(nccl, handle, &context, None)))
        .collect();
    aborts.into_iter().all(|abort| {
        abort.is_some_and(|abort| abort.recv_timeout(limit.saturating_sub(start.elapsed())).is_ok_and(|result| result.is_ok()))
    })
}

pub(super) fn abort_handle(
    nccl: Nccl,
    handle: Handle,
    context: &Arc<CudaContext>,
    name: Option<&Arc<CommunicatorName>>,
) -> Result<(), NcclError> {
    // If the context cannot be made current, NCCL still ends running work.
    let _ = set_current(context);
    // SAFETY: this thread closed the gate, or no other thread knows the handle. So the handle is
    // neither used later nor freed again. A thread that is still inside the gate is blocked in
    // NCCL, and NCCL allows another thread to abort then.
    let code = nccl.code("ncclCommAbort", |api| unsafe { api.ncclCommAbort(handle.get()) })?;
    match code {
        ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(()),
        code => Err(nccl.failure("ncclCommAbort", code, name.map(Arc::clone))),
    }
}
