//! Calls that finalize, abort, revoke, suspend and resume communicators.
//!
//! Calls to NCCL that may never return run on a separate thread.
//!
//! Invariant: a handle is passed to `ncclCommDestroy` or `ncclCommAbort` at most once. Only the
//! thread that closes the communicator's gate (its lock) starts this call.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use peerweave_driver::{deadline_after, wait_until};

use crate::comm::abort::{ABORT_LIMIT, abort_closed, abort_together};
use crate::comm::communicator::Communicator;
use crate::comm::teardown::{self, Teardown, no_thread_error};
use crate::comm::watchdog;
use crate::library::error::{MisuseKind, NcclError};
use crate::member::membership::{self, Inner, bounded};
use crate::member::spans;
use crate::member::state::{Allowed, State};
use crate::sys::{self, ncclResult_t};

/// Maximum time for which [`no_graphs`] waits. The driver may release the resources of a graph only
/// some time after the graph was destroyed.
const GRAPH_RELEASE_LIMIT: Duration = Duration::from_secs(2);

impl Communicator {
    /// Waits until all issued work is complete. Then ends this rank's membership in the
    /// communicator, and frees NCCL's resources.
    ///
    /// This call consumes the handle. Later calls through clones of the handle return
    /// [`NcclError::Dead`].
    ///
    /// When NCCL frees memory that peers have mapped, the driver waits until the peers' devices are
    /// idle. This matters if several threads of one process finalize their ranks. All these threads
    /// must have returned from this call before any of these threads enqueues work that waits for
    /// another rank.
    ///
    /// ```compile_fail,E0382
    /// # use std::time::Duration;
    /// # use peerweave_nccl::{Communicator, NcclError};
    /// # fn f(communicator: Communicator) -> Result<(), NcclError> {
    /// communicator.finalize(Duration::from_secs(20))?;
    /// communicator.revoke() // does not compile: `finalize` consumed the handle
    /// # }
    /// ```
    ///
    /// # Collective
    /// All ranks must make this call. A thread with several ranks calls
    /// [`finalize_all`](Self::finalize_all) instead.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] if captured graphs still use the communicator after two seconds. In
    /// this case the communicator is unchanged. [`NcclError::Timeout`] if other ranks do not arrive
    /// or work does not complete by the deadline. In this case the communicator is aborted.
    /// [`NcclError::Dead`] if the communicator has already been ended through another handle.
    pub fn finalize(self, deadline: Duration) -> Result<(), NcclError> {
        Self::finalize_all(vec![self], deadline)
    }

    /// Finalizes several ranks of this process together. Each rank ends as in
    /// [`finalize`](Self::finalize).
    ///
    /// # Collective
    /// As for [`finalize`](Self::finalize).
    ///
    /// # Errors
    /// As for [`finalize`](Self::finalize). Returns the first error. If captured graphs use one of
    /// the communicators when the call starts, no communicator is ended. After an error for one
    /// communicator, this call still ends the other communicators.
    pub fn finalize_all(communicators: Vec<Self>, deadline: Duration) -> Result<(), NcclError> {
        const CALL: &str = "finalize";
        let (start, deadline) = (Instant::now(), bounded(deadline));
        let rest = || deadline.saturating_sub(start.elapsed());
        let _span = spans::of_many(CALL, communicators.len());
        communicators.iter().try_for_each(|communicator| communicator.inner.nccl.not_forked(CALL))?;
        no_graphs(CALL, communicators.iter().map(|communicator| &communicator.inner), rest())?;
        let mut first_error = None;
        let mut ends = Vec::new();
        for communicator in &communicators {
            let inner = &communicator.inner;
            let closed = inner.enter_within(CALL, Allowed::LIVE, rest).and_then(|_inside| {
                // A capture may have begun since the first check, but no capture begins while this
                // thread is inside the gate.
                no_graphs(CALL, [inner], Duration::ZERO)?;
                inner.gate.close_from(State::Live, State::Finalized).map_err(|state| inner.dead(CALL, state))
            });
            match closed {
                Ok(()) => {
                    // Only readers can remain inside the gate, and readers leave soon. A
                    // revocation, which may block, would have changed the state.
                    inner.gate.drain(Duration::ZERO);
                    ends.push((inner, Teardown::of(inner, State::Live, rest()).start()));
                }
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        for (inner, end) in ends {
            // The thread aborts by itself at the deadline. This wait is longer, to receive the
            // thread's result.
            let result = match end.map(|end| end.recv_timeout(rest() + ABORT_LIMIT)) {
                Some(Ok(result)) => result,
                Some(Err(RecvTimeoutError::Timeout)) => Err(inner.timeout(CALL, start.elapsed())),
                Some(Err(RecvTimeoutError::Disconnected)) | None => Err(no_thread_error(CALL)),
            };
            if let Err(error) = result {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Ends this rank's membership in the communicator. Does not wait for running work or for other
    /// ranks. Running work on the device ends soon, with unspecified results. Calls in which other
    /// threads are blocked return an error. This call does not need the communicator's lock.
    ///
    /// Returns when NCCL has freed the communicator, or after `limit`. In the latter case NCCL
    /// continues to free the communicator in the background. If captured graphs use the
    /// communicator, NCCL frees the communicator's memory only when the graphs have been destroyed.
    /// This call does not wait until the graphs have been destroyed.
    ///
    /// # Errors
    /// [`NcclError::Timeout`] if NCCL has not finished within `limit`; [`NcclError::Dead`] if the
    /// communicator has already been ended; errors that NCCL returns.
    pub fn abort(&self, limit: Duration) -> Result<(), NcclError> {
        const CALL: &str = "abort";
        self.inner.nccl.not_forked(CALL)?;
        let _span = spans::of(&self.inner, CALL);
        self.inner.gate.close(State::Aborted).map_err(|state| self.inner.dead(CALL, state))?;
        abort_closed(std::slice::from_ref(&self.inner), bounded(limit)).pop().unwrap_or(Ok(()))
    }

    /// Aborts every communicator in this process, each on a separate thread. Returns the number of
    /// aborted communicators. Aborting several communicators one after the other can deadlock,
    /// because communicators share devices.
    ///
    /// # Errors
    /// As for [`abort`](Self::abort). Returns the first error.
    pub fn abort_all(limit: Duration) -> Result<usize, NcclError> {
        abort_together(&membership::all(), bounded(limit))
    }

    /// Waits until all previously dropped communicators have been freed. Waits for at most
    /// `deadline`. Returns whether all these communicators have been freed.
    ///
    /// The process also waits for dropped communicators at exit, for at most 10 s. Call this
    /// function to wait longer, or to find out whether the communicators have been freed.
    pub fn wait_for_dropped(deadline: Duration) -> bool {
        // The order of the two conditions matters. If the watchdog drops a last handle, the
        // communicator is counted before the inspection of the watchdog ends.
        let ended = || Ok(!watchdog::is_looking() && teardown::is_idle());
        wait_until::<std::convert::Infallible>(Instant::now() + bounded(deadline), ended).unwrap_or(false)
    }

    /// Ends running work on the communicator. A revoked communicator can only be
    /// [split](Self::split), [shrunk](Self::shrink), [aborted](Self::abort) or dropped. Requires
    /// NCCL 2.28.7.
    ///
    /// Blocked work on the device ends. On a blocking communicator, calls in which other threads
    /// are blocked also end. On a non-blocking communicator, `revoke` does not end a call in
    /// progress. Instead `revoke` waits until the call in progress releases the lock. A revocation
    /// during the call would make NCCL free the resources of the call twice. [`abort`](Self::abort)
    /// ends a call in progress.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] with an older NCCL. [`NcclError::Dead`] if the communicator has
    /// already been ended or revoked. [`NcclError::Timeout`] at the communicator's deadline. Errors
    /// that NCCL returns.
    pub fn revoke(&self) -> Result<(), NcclError> {
        const CALL: &str = "revoke";
        let inner = &self.inner;
        inner.nccl.not_forked(CALL)?;
        let _span = spans::of(inner, CALL);
        // With an old library the call fails before anything changes.
        inner.nccl.needs("ncclCommRevoke", crate::Version::new(2, 28, 7))?;
        if inner.blocking { revoke_concurrently(inner, CALL) } else { revoke_exclusively(inner, CALL) }
    }

    /// Releases device memory that NCCL does not need while no work is in flight. Requires NCCL
    /// 2.29.7.
    ///
    /// No work can be issued until [`resume`](Self::resume).
    ///
    /// # Collective
    /// All ranks must make this call while no work is in flight.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] if captured graphs still use the communicator after two seconds,
    /// because replayed calls of the graphs would access released memory.
    /// [`NcclError::Unsupported`] with an older NCCL. [`NcclError::Dead`]. Errors that NCCL
    /// returns.
    pub fn suspend(&self) -> Result<(), NcclError> {
        const CALL: &str = "suspend";
        self.inner.nccl.not_forked(CALL)?;
        no_graphs(CALL, [&self.inner], self.inner.deadline())?;
        self.change(CALL, State::Live, State::Suspended, |api, comm| {
            // SAFETY: the handle is live inside the gate.
            unsafe { api.ncclCommSuspend(comm, sys::NCCL_SUSPEND_MEM) }
        })
    }

    /// Reallocates the memory that [`suspend`](Self::suspend) has released. Requires NCCL 2.29.7.
    ///
    /// # Collective
    /// All ranks must make this call.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] if the communicator has not been suspended. [`NcclError::Unsupported`]
    /// with an older NCCL. [`NcclError::Dead`] if the communicator has failed, or has been revoked
    /// or ended. Errors that NCCL returns.
    pub fn resume(&self) -> Result<(), NcclError> {
        const CALL: &str = "resume";
        if self.inner.gate.state() == State::Live {
            return Err(NcclError::misuse(
                CALL,
                MisuseKind::Context { why: "the communicator is not suspended; call `suspend` first" },
            ));
        }
        self.change(CALL, State::Suspended, State::Live, |api, comm| {
            // SAFETY: the handle is live inside the gate.
            unsafe { api.ncclCommResume(comm) }
        })
    }

    /// Suspends or resumes the communicator. `function` makes the call of NCCL. If this call
    /// succeeds, the communicator's state changes from `from` to `to`. No other thread can enqueue
    /// work during the call.
    fn change(
        &self,
        call: &'static str,
        from: State,
        to: State,
        function: impl FnOnce(&'static sys::Api, sys::ncclComm_t) -> Result<ncclResult_t, peerweave_dylib::MissingSymbol>,
    ) -> Result<(), NcclError> {
        let inner = &self.inner;
        let allowed = if from == State::Live { Allowed::LIVE } else { Allowed::SUSPENDED };
        let _span = spans::of(inner, call);
        let inside = inner.enter(call, allowed)?;
        if from == State::Live {
            // A capture may have begun since the first check, but no capture begins while this
            // thread is inside the gate.
            no_graphs(call, [inner], Duration::ZERO)?;
        }
        inner.bind()?;
        inner.enter_blocking(call, &inside)?;
        let code = inner.started(inner.nccl.code(call, |api| function(api, inner.handle.get()))?);
        if code != ncclResult_t::ncclInProgress {
            inner.check(call, code)?;
            return inner.gate.change(from, to).map_err(|state| inner.dead(call, state));
        }
        // The state stops being live before this thread leaves the gate, so no other thread enters
        // before the call is complete.
        inner.gate.change(from, State::Suspended).map_err(|state| inner.dead(call, state))?;
        let completed = inner.complete(call, code, inside);
        let end = if completed.is_ok() { to } else { State::Failed };
        let _ = inner.gate.change(State::Suspended, end);
        completed
    }
}

/// Fails if captured graphs still use one of the communicators.
///
/// The driver releases the resources of a destroyed graph later, on a thread of the driver
/// (observed on H200). So this function first waits for that release, for at most `patience` or two
/// seconds, whichever is shorter.
pub(crate) fn no_graphs<'a>(
    call: &'static str,
    communicators: impl IntoIterator<Item = &'a Arc<Inner>> + Clone,
    patience: Duration,
) -> Result<(), NcclError> {
    let graphs = || communicators.clone().into_iter().map(|inner| inner.graphs.load(Ordering::Acquire)).max().unwrap_or(0);
    match wait_until::<Infallible>(deadline_after(patience.min(GRAPH_RELEASE_LIMIT)), || Ok(graphs() == 0)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(NcclError::misuse(call, MisuseKind::Graphs { count: graphs() })),
    }
}

/// Revokes a non-blocking communicator. Waits for the communicator's lock first. Returns a timeout
/// error if an earlier call of NCCL is still in progress.
fn revoke_exclusively(inner: &Arc<Inner>, call: &'static str) -> Result<(), NcclError> {
    let start = Instant::now();
    let inside = inner.enter(call, Allowed::OPEN)?;
    inner.bind()?;
    // An asynchronous error caused by a peer stays with the communicator, so it is not an error of
    // this call.
    let stays = inner.ask()?;
    if stays == ncclResult_t::ncclInProgress {
        // An earlier call, whose wait timed out, is still in progress.
        return Err(inner.timeout(call, Duration::ZERO));
    }
    let before = revoked(inner, call)?;
    inner.enter_blocking(call, &inside)?;
    let code = inner.nccl.code(call, |api| {
        // SAFETY: the handle is live inside the gate.
        unsafe { api.ncclCommRevoke(inner.handle.get(), sys::NCCL_REVOKE_DEFAULT) }
    });
    inside.leave_blocking();
    let started = code.map(|code| inner.started(code)).and_then(|code| match code {
        ncclResult_t::ncclInProgress => Ok(()),
        code => inner.check(call, code),
    });
    if started.is_err() {
        // NCCL refused the revocation. Restores the previous state, unless another thread has
        // changed the state.
        let _ = inner.gate.change(State::Revoked, before);
        return started;
    }
    let mut code = ncclResult_t::ncclInProgress;
    let done = wait_until(deadline_after(inner.deadline().saturating_sub(start.elapsed())), || {
        inner.check_open(call)?;
        code = inner.ask()?;
        Ok::<_, NcclError>(code != ncclResult_t::ncclInProgress)
    });
    match done? {
        false => Err(inner.timeout(call, start.elapsed())),
        true if code == stays => Ok(()),
        true => inner.check(call, code),
    }
}

/// Revokes a blocking communicator while other threads may hold the communicator's lock. Blocked
/// calls of these threads end.
fn revoke_concurrently(inner: &Arc<Inner>, call: &'static str) -> Result<(), NcclError> {
    let reader = inner.gate.enter_shared(Allowed::OPEN).map_err(|refused| inner.refused(call, refused))?;
    inner.bind()?;
    let before = revoked(inner, call)?;
    let code = reader.enter_blocking(|| {
        // SAFETY: the handle is live. A thread that frees the handle waits for readers, or finds
        // that this thread is blocked in NCCL. NCCL allows another thread to abort while this
        // thread is blocked. NCCL allows a revocation concurrently with a blocked call.
        inner.nccl.code(call, |api| unsafe { api.ncclCommRevoke(inner.handle.get(), sys::NCCL_REVOKE_DEFAULT) })
    });
    let result = inner.check(call, code.map_err(|state| inner.dead(call, state))??);
    if result.is_err() {
        let _ = inner.gate.change(State::Revoked, before);
    }
    // If another thread has ended the communicator during this call, it can no longer be split or
    // shrunk.
    if inner.gate.is_closed() { result.and(Err(inner.dead(call, inner.gate.state()))) } else { result }
}

/// Sets the communicator's state to revoked, and returns the previous state. Fails if the
/// communicator is already revoked, finalized or aborted. So only the first caller makes NCCL
/// revoke the communicator.
fn revoked(inner: &Inner, call: &'static str) -> Result<State, NcclError> {
    match inner.gate.set(State::Revoked) {
        Ok(State::Revoked) => Err(inner.dead(call, State::Revoked)),
        before => before.map_err(|state| inner.dead(call, state)),
    }
}
