//! Background threads that end communicators, either for `finalize` or after a communicator was
//! dropped.
//!
//! Calls to NCCL that may never return run on a separate thread.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use peerweave_driver::{CudaContext, Keep, wait_until};

use crate::comm::abort::abort_handle;
use crate::library::error::{CommunicatorName, MisuseKind, NcclError};
use crate::library::loading;
use crate::member::membership::{Handle, Inner, set_current};
use crate::member::state::{Allowed, Inside, Refused, State};
use crate::sys::ncclResult_t;
use crate::{Nccl, Timeout};

/// Time limit for which the process waits at exit for communicators that are being ended.
pub(crate) const EXIT_PATIENCE: Duration = Duration::from_secs(10);

/// Number of running background threads of all kinds ([`Work`]). If the bit [`CLOSED`] is set, no
/// further thread may start.
static ENDING: AtomicUsize = AtomicUsize::new(0);

/// Number of running background threads that end or abort a communicator ([`Work::End`],
/// [`Work::Abort`]).
static COMMUNICATORS: AtomicUsize = AtomicUsize::new(0);

/// Bit of [`ENDING`]: the process is ending and does not wait for background threads any more.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Kind of work that a background thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Ends a dropped or finalized communicator.
    End,
    /// Calls `ncclCommFinalize` for the thread that ends the communicator ([`Work::End`]).
    Finalize,
    /// Aborts a communicator.
    Abort,
    /// Frees a resource of a communicator.
    Free,
}

impl Work {
    /// Returns the name of the background thread that does this work.
    fn name(self) -> &'static str {
        match self {
            Self::End => "peerweave-end",
            Self::Finalize => "peerweave-finalize",
            Self::Abort => "peerweave-abort",
            Self::Free => "peerweave-free",
        }
    }

    /// Returns by how much a thread with this work increases the counter [`COMMUNICATORS`]. The
    /// result is 1 for [`Work::End`] and [`Work::Abort`], which end a communicator, and 0
    /// otherwise.
    fn communicators(self) -> usize {
        usize::from(matches!(self, Self::End | Self::Abort))
    }
}

/// Returns `true` if no background thread is running that ends communicators or frees their
/// resources.
pub(crate) fn is_idle() -> bool {
    ENDING.load(Ordering::Acquire) & !CLOSED == 0
}

/// Returns the number of communicators that are being ended in the background.
pub(crate) fn communicators() -> usize {
    COMMUNICATORS.load(Ordering::Acquire)
}

/// Returns whether the process is ending. An ending process must not call NCCL any more.
pub(super) fn is_closed() -> bool {
    ENDING.load(Ordering::Acquire) & CLOSED != 0
}

/// Ends a dropped communicator in the background. Never blocks and never panics. Leaks the
/// communicator if no thread can be started.
fn teardown_later(inner: &Inner, state: State) {
    if inner.nccl.not_forked("drop").is_err() {
        return;
    }
    if Teardown::of(inner, state, inner.deadline()).start().is_none() && !is_closed() {
        tracing::error!(communicator = %inner.name, "leaked the communicator, because no thread could be started to end it");
    }
}

/// The values that a background thread needs to end a communicator that is no longer used.
pub(super) struct Teardown {
    nccl: Nccl,
    handle: Handle,
    context: Arc<CudaContext>,
    name: Arc<CommunicatorName>,
    state: State,
    deadline: Duration,
    /// Memory that peers may access until the communicator is freed. Leaked if the communicator
    /// cannot be freed.
    deferred: ManuallyDrop<Vec<Keep>>,
    is_freed: Arc<AtomicBool>,
}

impl Teardown {
    pub(super) fn of(inner: &Inner, state: State, deadline: Duration) -> Self {
        Self {
            nccl: inner.nccl,
            handle: inner.handle,
            context: Arc::clone(&inner.context),
            name: Arc::clone(&inner.name),
            state,
            deadline,
            deferred: ManuallyDrop::new(inner.take_deferred()),
            is_freed: Arc::clone(&inner.is_freed),
        }
    }

    pub(super) fn start(self) -> Option<Receiver<Result<(), NcclError>>> {
        spawn_background(Work::End, move || {
            let start = Instant::now();
            let abort = || abort_handle(self.nccl, self.handle, &self.context, Some(&self.name));
            let finalized = if self.state == State::Live { self.finalize(start) } else { Ok(()) };
            let freed = match (self.state, &finalized) {
                // NCCL can destroy a suspended communicator without finalizing it.
                (State::Live | State::Suspended, Ok(())) => self.destroy(),
                // The communicator failed, was revoked, or could not be finalized. An abort frees
                // the communicator and ends running work.
                _ => abort(),
            };
            if freed.is_ok() {
                self.is_freed.store(true, Ordering::Release);
                drop(ManuallyDrop::into_inner(self.deferred));
            }
            let ended = finalized.and(freed);
            if let Err(error) = &ended {
                tracing::warn!(communicator = %self.name, %error, "could not finalize the communicator");
            }
            ended
        })
    }

    /// Calls `ncclCommFinalize`, which completes the issued work. Waits for the result, at most
    /// until the deadline.
    fn finalize(&self, start: Instant) -> Result<(), NcclError> {
        const CALL: &str = "ncclCommFinalize";
        let (nccl, handle, context) = (self.nccl, self.handle, Arc::clone(&self.context));
        // On a blocking communicator `ncclCommFinalize` never returns if a peer is lost, so another
        // thread calls it.
        let called = spawn_background(Work::Finalize, move || {
            let _ = set_current(&context);
            // SAFETY: the gate is closed, and this is the only use of the handle until it returns
            // or is aborted.
            nccl.code(CALL, |api| unsafe { api.ncclCommFinalize(handle.get()) })
        });
        let answer = called.map(|called| called.recv_timeout(self.deadline.saturating_sub(start.elapsed())));
        let state = match answer {
            Some(Ok(Ok(ncclResult_t::ncclInProgress))) => {
                let mut state = ncclResult_t::ncclInProgress;
                let done = wait_until(start + self.deadline, || {
                    // SAFETY: as above; the pointer is to a live value.
                    let code = self.nccl.code(CALL, |api| unsafe { api.ncclCommGetAsyncError(handle.get(), &raw mut state) })?;
                    Ok::<_, NcclError>(code != ncclResult_t::ncclSuccess || state != ncclResult_t::ncclInProgress)
                })?;
                if done { Ok(state) } else { Err(self.late(start)) }
            }
            Some(Ok(code)) => code,
            Some(Err(RecvTimeoutError::Timeout)) => Err(self.late(start)),
            Some(Err(RecvTimeoutError::Disconnected)) | None => Err(no_thread_error(CALL)),
        };
        match state {
            Ok(ncclResult_t::ncclSuccess) => Ok(()),
            Ok(code) => Err(self.nccl.failure(CALL, code, Some(Arc::clone(&self.name)))),
            Err(error) => Err(error),
        }
    }

    fn destroy(&self) -> Result<(), NcclError> {
        let _ = set_current(&self.context);
        // SAFETY: the gate is closed and drained by being dropped or by `finalize`, the handle is
        // freed only here, and nothing is in flight.
        let code = self.nccl.code("ncclCommDestroy", |api| unsafe { api.ncclCommDestroy(self.handle.get()) })?;
        match code {
            ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(()),
            code => Err(self.nccl.failure("ncclCommDestroy", code, Some(Arc::clone(&self.name)))),
        }
    }

    fn late(&self, start: Instant) -> NcclError {
        let communicator = Some(Arc::clone(&self.name));
        Timeout {
            call: "finalize",
            sequence: None,
            waited: start.elapsed(),
            communicator,
            missing: Vec::new(),
            reports: Vec::new(),
        }
        .into()
    }
}

#[cold]
pub(crate) fn no_thread_error(call: &'static str) -> NcclError {
    NcclError::misuse(
        call,
        MisuseKind::Context { why: "the system cannot start a thread for the call; raise the limit on threads" },
    )
}

/// Registers the function `wait_for_ending`, which runs at process exit. That function waits for
/// the threads that end communicators, and prevents the start of new threads. NCCL, its CUDA
/// runtime and the driver free their state at exit, and a thread inside these libraries would then
/// use freed state.
///
/// A second call with the same `registered` has no effect. The crate registers `wait_for_ending`
/// twice, with two values of `registered`: before the first background thread starts, and after the
/// first communicator was created. At that creation, the CUDA runtime registers its own exit
/// function. Exit functions run in reverse order of registration, so the second registration makes
/// `wait_for_ending` run before the runtime frees its state.
fn wait_at_exit(registered: &Once) {
    registered.call_once(|| {
        // SAFETY: the function lives as long as the process, and does not panic.
        if unsafe { libc::atexit(wait_for_ending) } != 0 {
            tracing::warn!("atexit failed; the process does not wait at exit for dropped communicators");
        }
    });
}

/// Registers the exit function a second time, as explained at [`wait_at_exit`]. Called after the
/// first communicator was created. If this function is called again, it does nothing.
pub(super) fn created() {
    static REGISTERED: Once = Once::new();
    wait_at_exit(&REGISTERED);
}

extern "C" fn wait_for_ending() {
    // A forked child has a copy of the count, but not the threads.
    if loading::not_forked("exit").is_ok() {
        // True if the count was 0 and is now closed to new threads, or if this function has already
        // run.
        let closed = || {
            let last = ENDING.compare_exchange(0, CLOSED, Ordering::SeqCst, Ordering::SeqCst);
            Ok::<_, std::convert::Infallible>(last.is_ok() || is_closed())
        };
        let _ = wait_until(Instant::now() + EXIT_PATIENCE, closed);
        ENDING.fetch_or(CLOSED, Ordering::SeqCst);
    }
}

/// Starts a thread that runs `run`. [`ENDING`] counts the thread until `run` returns. The returned
/// receiver gets the result of `run`. Returns `None` if the system cannot start a thread or the
/// process is ending.
pub(super) fn spawn_background<R: Send + 'static>(work: Work, run: impl FnOnce() -> R + Send + 'static) -> Option<Receiver<R>> {
    struct Counted(Work);
    impl Drop for Counted {
        fn drop(&mut self) {
            COMMUNICATORS.fetch_sub(self.0.communicators(), Ordering::Release);
            ENDING.fetch_sub(1, Ordering::Release);
        }
    }
    static REGISTERED: Once = Once::new();
    wait_at_exit(&REGISTERED);
    let more = |ending: usize| (ending & CLOSED == 0).then_some(ending + 1);
    ENDING.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
    COMMUNICATORS.fetch_add(work.communicators(), Ordering::Relaxed);
    let counted = Counted(work);
    let (sender, receiver) = channel();
    let body = move || {
        let done = run();
        // Updates the count before sending the result, so that the receiver sees the new count.
        drop(counted);
        // The receiver may have given up.
        let _ = sender.send(done);
    };
    std::thread::Builder::new().name(work.name().to_owned()).spawn(body).ok().map(|_| receiver)
}

/// Runs `work`, which frees a resource of a communicator. Called by destructors. `work` runs while
/// the communicator's lock is held. If the lock becomes free within `patience`, `work` runs on this
/// thread. If the lock stays busy, `work` runs on a background thread. If the communicator was
/// freed, `work` does not run.
pub(crate) fn run_or_defer(
    inner: Arc<Inner>,
    allowed: Allowed,
    patience: Duration,
    work: impl FnOnce(&Inner) -> Result<(), NcclError> + Send + 'static,
) {
    // If the communicator has been freed, its resources were freed together with the communicator.
    fn free(inner: &Inner, inside: &Inside<'_>, work: impl FnOnce(&Inner) -> Result<(), NcclError>) {
        if inside.enter_blocking().is_ok()
            && let Err(error) = work(inner)
        {
            tracing::warn!(%error, "could not free a resource of the communicator");
        }
    }
    if inner.nccl.not_forked("drop").is_err() {
        return;
    }
    match inner.gate.enter(allowed, || patience) {
        Ok(inside) => return free(&inner, &inside, work),
        Err(Refused::State(_)) => return,
        Err(Refused::Busy) => {}
    }
    drop(spawn_background(Work::Free, move || {
        let _ = set_current(&inner.context);
        if let Ok(inside) = inner.gate.enter(allowed, || inner.deadline()) {
            free(&inner, &inside, work);
        }
    }));
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A forked child cannot end a communicator, and a lock copied by the fork may never be
        // released.
        if self.nccl.not_forked("drop").is_err() {
            return;
        }
        // No thread is inside the gate: entering borrows the value that is dropped here.
        let state = self.gate.state();
        if self.gate.close(State::Finalized).is_ok() {
            teardown_later(self, state);
        } else if !self.is_freed.load(Ordering::Acquire) {
            // NCCL refused the abort. The communicator still exists, and peers may still access its
            // memory.
            std::mem::forget(self.take_deferred());
        }
    }
}
