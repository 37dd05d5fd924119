//! How a communicator ends: in order, by force, in the background; and how it rests.
//!
//! What waits for NCCL without a limit of NCCL's own does so on a thread of its own.
//!
//! Invariant: a handle is given to `ncclCommDestroy` or `ncclCommAbort` once, by who closed its gate.

use std::convert::Infallible;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use peerweave_driver::{CudaContext, Keep, deadline_after, wait_until};

use crate::comm::communicator::Communicator;
use crate::comm::watchdog;
use crate::library::error::{CommunicatorName, MisuseKind, NcclError};
use crate::member::membership::{self, Handle, Inner, bounded, set_current};
use crate::member::spans;
use crate::member::state::{Allowed, Inside, Refused, State};
use crate::sys::{self, ncclResult_t};
use crate::{Nccl, Timeout};

/// How long this crate waits for aborts that nobody gave a limit.
pub(crate) const ABORT_LIMIT: Duration = Duration::from_secs(10);

/// How long an abort waits for a thread to leave a call by itself. With a non-blocking communicator that takes microseconds; a thread that is stuck
/// inside NCCL only leaves because of the abort.
const ABORT_GRACE: Duration = Duration::from_millis(500);

/// How long an abort waits for NCCL where graphs keep the communicator from being freed.
const WITH_GRAPHS: Duration = Duration::from_millis(200);

/// How long the driver may take to let go of what destroyed graphs held.
const GRAPHS_GO: Duration = Duration::from_secs(2);

/// How many communicators are being ended in the background.
static ENDING: AtomicUsize = AtomicUsize::new(0);

/// How many communicators are being ended in the background.
pub(crate) fn ending() -> usize {
    ENDING.load(Ordering::Acquire)
}

impl Communicator {
    /// Ends the membership in order: what was issued completes, and NCCL's resources are freed.
    ///
    /// It takes the handle; clones of it give [`NcclError::Dead`] afterwards.
    ///
    /// NCCL frees memory that its peers have mapped, for which the driver waits until those devices are idle. So where several ranks are threads of one
    /// process, let all of them come back from this before one of them enqueues anything that waits for another rank.
    ///
    /// ```compile_fail,E0382
    /// # use std::time::Duration;
    /// # use peerweave_nccl::{Communicator, NcclError};
    /// # fn f(communicator: Communicator) -> Result<(), NcclError> {
    /// communicator.finalize(Duration::from_secs(20))?;
    /// communicator.revoke() // it was given away
    /// # }
    /// ```
    ///
    /// # Collective
    /// All ranks. A thread that has several ranks ends them with [`finalize_all`](Self::finalize_all).
    ///
    /// # Errors
    /// [`NcclError::Misuse`] if captured graphs still use it after two seconds (then nothing was done); [`NcclError::Timeout`] if others did not come or work does not end, after
    /// which it is aborted; [`NcclError::Dead`] if it was ended before, through another handle.
    pub fn finalize(self, deadline: Duration) -> Result<(), NcclError> {
        Self::finalize_all(vec![self], deadline)
    }

    /// Ends several memberships of this process in order.
    ///
    /// # Collective
    /// As [`finalize`](Self::finalize).
    ///
    /// # Errors
    /// As [`finalize`](Self::finalize): the first. All are ended nevertheless, unless a graph uses one of them.
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
                // A capture may have come between, but not while this thread is inside.
                no_graphs(CALL, [inner], Duration::ZERO)?;
                inner.gate.close_from(State::Live, State::Finalized).map_err(|state| inner.dead(CALL, state))
            });
            match closed {
                Ok(()) => {
                    // Only who asks something can be left, and leaves in no time: who revoked it would have changed its state.
                    inner.gate.drain(Duration::ZERO);
                    ends.push((inner, Ending::of(inner, State::Live, rest()).start()));
                }
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        for (inner, end) in ends {
            // The thread has the deadline itself, and aborts after it: a little more, to hear of it.
            let result = match end.map(|end| end.recv_timeout(rest() + ABORT_LIMIT)) {
                Some(Ok(result)) => result,
                Some(Err(RecvTimeoutError::Timeout)) => Err(inner.timeout(CALL, start.elapsed())),
                Some(Err(RecvTimeoutError::Disconnected)) | None => Err(no_thread(CALL)),
            };
            if let Err(error) = result {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Ends the membership by force: work that runs on the device ends soon, with unspecified results, and calls of other threads that are stuck return an
    /// error. Needs no turn and no other rank.
    ///
    /// Returns when NCCL has freed the communicator, at most after `limit`; NCCL goes on in the background then. While captured graphs use the
    /// communicator, NCCL keeps its memory until they are destroyed, and this returns without waiting for that.
    ///
    /// # Errors
    /// [`NcclError::Timeout`] if NCCL has not ended by then; [`NcclError::Dead`] if it was ended before; NCCL's own.
    pub fn abort(&self, limit: Duration) -> Result<(), NcclError> {
        const CALL: &str = "abort";
        self.inner.nccl.not_forked(CALL)?;
        let _span = spans::of(&self.inner, CALL);
        self.inner.gate.close(State::Aborted).map_err(|state| self.inner.dead(CALL, state))?;
        abort_closed(std::slice::from_ref(&self.inner), bounded(limit)).pop().unwrap_or(Ok(()))
    }

    /// Aborts every communicator of this process, each from a thread of its own: aborting one after the other can wait for ever, since they share
    /// devices. Gives how many were aborted.
    ///
    /// # Errors
    /// As [`abort`](Self::abort): the first.
    pub fn abort_all(limit: Duration) -> Result<usize, NcclError> {
        abort_together(&membership::all(), bounded(limit))
    }

    /// Waits until the communicators that were dropped so far are ended, at most so long. Gives whether they are.
    ///
    /// For the end of a program, which would otherwise take their threads with it.
    pub fn settle(deadline: Duration) -> bool {
        // In this order: a last handle that the watchdog drops is counted before its look is over.
        let ended = || Ok(!watchdog::is_looking() && ENDING.load(Ordering::Acquire) == 0);
        wait_until::<std::convert::Infallible>(Instant::now() + bounded(deadline), ended).unwrap_or(false)
    }

    /// Ends what runs on the communicator, and keeps it for [`split`](Self::split) and [`shrink`](Self::shrink). NCCL 2.28.7.
    ///
    /// What is stuck on the device ends. Where the communicator blocks, so does what is stuck in a call of another thread. Where it does not block,
    /// this takes its turn as other calls do: NCCL frees a call that it is still at work on, and later frees it again ([`abort`](Self::abort) ends
    /// such a call).
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] before; [`NcclError::Dead`], also where it was revoked before; [`NcclError::Timeout`] by the communicator's deadline;
    /// NCCL's own.
    pub fn revoke(&self) -> Result<(), NcclError> {
        const CALL: &str = "revoke";
        let inner = &self.inner;
        inner.nccl.not_forked(CALL)?;
        let _span = spans::of(inner, CALL);
        // An old library is told before anything changes.
        inner.nccl.needs("ncclCommRevoke", crate::Version::new(2, 28, 7))?;
        if inner.blocking { revoke_beside_others(inner, CALL) } else { revoke_in_turn(inner, CALL) }
    }

    /// Gives back the memory of the device that NCCL can do without for now. NCCL 2.29.7.
    ///
    /// Until [`resume`](Self::resume), nothing can be issued.
    ///
    /// # Collective
    /// All ranks, when nothing is in flight.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] if captured graphs still use it after two seconds, since they would replay calls into memory that was given back;
    /// [`NcclError::Unsupported`] before; [`NcclError::Dead`]; NCCL's own.
    pub fn suspend(&self) -> Result<(), NcclError> {
        const CALL: &str = "suspend";
        self.inner.nccl.not_forked(CALL)?;
        no_graphs(CALL, [&self.inner], self.inner.deadline())?;
        self.change(CALL, State::Live, State::Suspended, |api, comm| {
            // SAFETY: the handle is live inside the gate.
            unsafe { api.ncclCommSuspend(comm, sys::NCCL_SUSPEND_MEM) }
        })
    }

    /// Takes the memory again. NCCL 2.29.7.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] unless it is suspended; else as [`suspend`](Self::suspend).
    pub fn resume(&self) -> Result<(), NcclError> {
        const CALL: &str = "resume";
        if self.inner.gate.state() == State::Live {
            return Err(NcclError::misuse(CALL, MisuseKind::Context { why: "the communicator is not suspended" }));
        }
        self.change(CALL, State::Suspended, State::Live, |api, comm| {
            // SAFETY: the handle is live inside the gate.
            unsafe { api.ncclCommResume(comm) }
        })
    }

    /// Has NCCL change the state, and changes it here before anybody else gets in.
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
            // A capture may have come between, but not while this thread is inside.
            no_graphs(call, [inner], Duration::ZERO)?;
        }
        inner.bind()?;
        inner.dive(call, &inside)?;
        let code = inner.begun(inner.nccl.code(call, |api| function(api, inner.handle.get()))?);
        if code != ncclResult_t::ncclInProgress {
            inner.check(call, code)?;
            return inner.gate.change(from, to).map_err(|state| inner.dead(call, state));
        }
        // Nobody gets in between, since the state is changed to what is not live before the gate is left.
        inner.gate.change(from, State::Suspended).map_err(|state| inner.dead(call, state))?;
        let settled = inner.settle(call, code, inside);
        let end = if settled.is_ok() { to } else { State::Failed };
        let _ = inner.gate.change(State::Suspended, end);
        settled
    }
}

/// An error while captured graphs use one of them.
///
/// The driver lets go of what a destroyed graph held some time after the destruction, on a thread of its own (seen on H200): that is waited for, at most
/// for `patience`, and not for long.
pub(crate) fn no_graphs<'a>(
    call: &'static str,
    communicators: impl IntoIterator<Item = &'a Arc<Inner>> + Clone,
    patience: Duration,
) -> Result<(), NcclError> {
    let graphs = || communicators.clone().into_iter().map(|inner| inner.graphs.load(Ordering::Acquire)).max().unwrap_or(0);
    match wait_until::<Infallible>(deadline_after(patience.min(GRAPHS_GO)), || Ok(graphs() == 0)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(NcclError::misuse(call, MisuseKind::Graphs { count: graphs() })),
    }
}

/// Revokes what does not block: nobody else is inside, and NCCL has nothing left of an earlier call.
fn revoke_in_turn(inner: &Arc<Inner>, call: &'static str) -> Result<(), NcclError> {
    let start = Instant::now();
    let inside = inner.enter(call, Allowed::OPEN)?;
    inner.bind()?;
    // An error of a peer's stays, whatever becomes of this.
    let stays = inner.ask()?;
    if stays == ncclResult_t::ncclInProgress {
        // Somebody gave up waiting for it.
        return Err(inner.timeout(call, Duration::ZERO));
    }
    let before = revoked(inner, call)?;
    inner.dive(call, &inside)?;
    let code = inner.nccl.code(call, |api| {
        // SAFETY: the handle is live inside the gate.
        unsafe { api.ncclCommRevoke(inner.handle.get(), sys::NCCL_REVOKE_DEFAULT) }
    });
    inside.surface();
    let begun = code.map(|code| inner.begun(code)).and_then(|code| match code {
        ncclResult_t::ncclInProgress => Ok(()),
        code => inner.check(call, code),
    });
    if begun.is_err() {
        // NCCL did not do it: what it was, unless it became something else meanwhile.
        let _ = inner.gate.change(State::Revoked, before);
        return begun;
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

/// Revokes what blocks, whoever is inside: what is stuck there ends by it.
fn revoke_beside_others(inner: &Arc<Inner>, call: &'static str) -> Result<(), NcclError> {
    let looking = inner.gate.look(Allowed::OPEN).map_err(|refused| inner.refused(call, refused))?;
    inner.bind()?;
    let before = revoked(inner, call)?;
    let code = looking.dive(|| {
        // SAFETY: the handle is live: who frees it waits for who looks in, or finds that it is stuck in here, which NCCL lets another thread abort. NCCL
        // lets this function run beside a call that is stuck.
        inner.nccl.code(call, |api| unsafe { api.ncclCommRevoke(inner.handle.get(), sys::NCCL_REVOKE_DEFAULT) })
    });
    let result = inner.check(call, code.map_err(|state| inner.dead(call, state))??);
    if result.is_err() {
        let _ = inner.gate.change(State::Revoked, before);
    }
    // Who ended it meanwhile left nothing to split or shrink.
    if inner.gate.is_closed() { result.and(Err(inner.dead(call, inner.gate.state()))) } else { result }
}

/// Notes that it is revoked, and gives what it was: NCCL does it once, for who was first; not what was seen closed a moment ago.
fn revoked(inner: &Inner, call: &'static str) -> Result<State, NcclError> {
    match inner.gate.set(State::Revoked) {
        Ok(State::Revoked) => Err(inner.dead(call, State::Revoked)),
        before => before.map_err(|state| inner.dead(call, state)),
    }
}

/// How far the abort of a communicator is.
#[derive(Debug, Default)]
pub(crate) struct Abort {
    has_begun: AtomicBool,
    is_done: AtomicBool,
}

impl Abort {
    /// Waits until NCCL has done it, however long that takes; where graphs keep NCCL from freeing the communicator, until it has ended what runs. For a call
    /// that found the gate closed, and has left it: NCCL may have been about to launch it, with memory that is the caller's again when the call returns.
    ///
    /// The one wait of this crate that has no deadline: giving the memory back earlier would be unsound, and nobody but NCCL can end it.
    pub(crate) fn wait(inner: &Inner) {
        let mut begun = None;
        let mut done = || {
            let with_graphs = inner.graphs.load(Ordering::Acquire) != 0 && inner.abort.has_begun.load(Ordering::Acquire);
            let ended_what_runs = with_graphs && begun.get_or_insert_with(Instant::now).elapsed() >= WITH_GRAPHS;
            Ok(ended_what_runs || inner.abort.is_done.load(Ordering::Acquire))
        };
        while wait_until::<Infallible>(deadline_after(ABORT_LIMIT), &mut done) != Ok(true) {
            tracing::error!(communicator = %inner.name, "an abort takes long: a call that it cuts off waits until NCCL is done with the call's memory");
        }
    }
}

/// Aborts those of them that are open, each from its own thread. Gives how many.
pub(crate) fn abort_together(communicators: &[Arc<Inner>], limit: Duration) -> Result<usize, NcclError> {
    let open = |inner: &&Arc<Inner>| inner.nccl.not_forked("abort").is_ok() && inner.gate.close(State::Aborted).is_ok();
    let closed: Vec<Arc<Inner>> = communicators.iter().filter(open).map(Arc::clone).collect();
    abort_closed(&closed, limit).into_iter().collect::<Result<Vec<()>, _>>().map(|aborted| aborted.len())
}

/// Frees communicators that this thread has closed, and waits for that, at most so long.
///
/// Where captured graphs use one, NCCL ends what runs, and frees it only with them: then this only waits until NCCL has ended what runs.
pub(crate) fn abort_closed(communicators: &[Arc<Inner>], limit: Duration) -> Vec<Result<(), NcclError>> {
    const CALL: &str = "abort";
    let start = Instant::now();
    let aborts: Vec<_> = communicators
        .iter()
        .map(|inner| {
            tracing::warn!(communicator = %inner.name, "aborted");
            let theirs = Arc::clone(inner);
            in_the_background("peerweave-abort", move || abort_one(&theirs))
        })
        .collect();
    let rest = || limit.saturating_sub(start.elapsed());
    let wait = |(inner, abort): (&Arc<Inner>, Option<Receiver<_>>)| {
        // Without a thread the limit cannot be kept, but calls that were cut off wait for the abort.
        let Some(abort) = abort else { return abort_one(inner) };
        if inner.graphs.load(Ordering::Acquire) == 0 {
            return abort.recv_timeout(rest()).unwrap_or_else(|_| Err(inner.timeout(CALL, start.elapsed())));
        }
        // The first thing that NCCL does is to end what runs.
        let has_begun = || Ok(inner.abort.has_begun.load(Ordering::Acquire));
        match wait_until::<Infallible>(deadline_after(rest()), has_begun) {
            Ok(true) => abort.recv_timeout(WITH_GRAPHS.min(rest())).unwrap_or(Ok(())),
            Ok(false) => Err(inner.timeout(CALL, start.elapsed())),
        }
    };
    communicators.iter().zip(aborts).map(wait).collect()
}

/// Frees a communicator that was closed, when nobody uses it any more, or all who do are stuck in NCCL.
///
/// A thread that is stuck in a group leaves when the first of the group's communicators is aborted, and uses all of them until then. So that one is
/// aborted alone, and the others, which nobody may have aborted, after it.
fn abort_one(inner: &Arc<Inner>) -> Result<(), NcclError> {
    if !inner.gate.drain(ABORT_GRACE) {
        let group = watchdog::stuck_together(inner);
        let is_first = group.iter().all(|other| inner.name.number <= other.name.number);
        tracing::warn!(communicator = %inner.name, others = group.len() - 1, "aborted while a call on it is stuck");
        let others: Vec<_> = group.into_iter().filter(|other| !Arc::ptr_eq(other, inner)).collect();
        if !others.is_empty() {
            // Waits for no end: each has a thread of its own.
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

/// Frees handles that are no communicators yet. Gives whether NCCL was done in time.
pub(crate) fn abort_handles(nccl: Nccl, handles: Vec<(Handle, Arc<CudaContext>)>, limit: Duration) -> bool {
    let start = Instant::now();
    let aborts: Vec<_> = handles
        .into_iter()
        .map(|(handle, context)| in_the_background("peerweave-abort", move || abort_handle(nccl, handle, &context, None)))
        .collect();
    aborts.into_iter().all(|abort| {
        abort.is_some_and(|abort| abort.recv_timeout(limit.saturating_sub(start.elapsed())).is_ok_and(|result| result.is_ok()))
    })
}

fn abort_handle(
    nccl: Nccl,
    handle: Handle,
    context: &Arc<CudaContext>,
    name: Option<&Arc<CommunicatorName>>,
) -> Result<(), NcclError> {
    // Without its context NCCL still ends what runs.
    let _ = set_current(context);
    // SAFETY: this thread closed the gate, or is the only one that knows the handle, so that nobody uses it later and nobody frees it again. A thread that
    // is still inside is stuck in NCCL, which lets another thread abort then.
    let code = nccl.code("ncclCommAbort", |api| unsafe { api.ncclCommAbort(handle.get()) })?;
    match code {
        ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(()),
        code => Err(nccl.failure("ncclCommAbort", code, name.map(Arc::clone))),
    }
}

/// Ends in the background what was dropped. Never blocks, never panics: what cannot be ended is leaked.
pub(crate) fn close_later(inner: &Inner, state: State) {
    if inner.nccl.not_forked("drop").is_err() {
        return;
    }
    if Ending::of(inner, state, inner.deadline()).start().is_none() {
        tracing::error!(communicator = %inner.name, "leaked: no thread to end it");
    }
}

/// What is needed to end a communicator that nobody uses any more.
struct Ending {
    nccl: Nccl,
    handle: Handle,
    context: Arc<CudaContext>,
    name: Arc<CommunicatorName>,
    state: State,
    deadline: Duration,
    /// Memory that peers reach until the communicator is freed: leaked if it cannot be.
    parked: ManuallyDrop<Vec<Keep>>,
    is_freed: Arc<AtomicBool>,
}

impl Ending {
    fn of(inner: &Inner, state: State, deadline: Duration) -> Self {
        Self {
            nccl: inner.nccl,
            handle: inner.handle,
            context: Arc::clone(&inner.context),
            name: Arc::clone(&inner.name),
            state,
            deadline,
            parked: ManuallyDrop::new(inner.take_parked()),
            is_freed: Arc::clone(&inner.is_freed),
        }
    }

    fn start(self) -> Option<Receiver<Result<(), NcclError>>> {
        in_the_background("peerweave-end", move || {
            let start = Instant::now();
            let abort = || abort_handle(self.nccl, self.handle, &self.context, Some(&self.name));
            let finalized = if self.state == State::Live { self.finalize(start) } else { Ok(()) };
            let freed = match (self.state, &finalized) {
                // NCCL destroys what is suspended; what failed or was revoked has nothing to complete.
                (State::Live | State::Suspended, Ok(())) => self.destroy(),
                // Not in order, but it is freed, and what runs ends.
                _ => abort(),
            };
            if freed.is_ok() {
                self.is_freed.store(true, Ordering::Release);
                drop(ManuallyDrop::into_inner(self.parked));
            }
            let ended = finalized.and(freed);
            if let Err(error) = &ended {
                tracing::warn!(communicator = %self.name, %error, "could not be ended in order");
            }
            ended
        })
    }

    /// Completes what was issued.
    fn finalize(&self, start: Instant) -> Result<(), NcclError> {
        const CALL: &str = "ncclCommFinalize";
        let (nccl, handle, context) = (self.nccl, self.handle, Arc::clone(&self.context));
        // A blocking communicator would keep this thread for ever where a peer is gone, so another one calls.
        let called = in_the_background("peerweave-finalize", move || {
            let _ = set_current(&context);
            // SAFETY: the gate is closed, and this is the only use of the handle until it returns or is aborted.
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
            Some(Err(RecvTimeoutError::Disconnected)) | None => Err(no_thread(CALL)),
        };
        match state {
            Ok(ncclResult_t::ncclSuccess) => Ok(()),
            Ok(code) => Err(self.nccl.failure(CALL, code, Some(Arc::clone(&self.name)))),
            Err(error) => Err(error),
        }
    }

    fn destroy(&self) -> Result<(), NcclError> {
        let _ = set_current(&self.context);
        // SAFETY: the gate is closed and drained by being dropped or by `finalize`, nobody else frees the handle, and nothing is in flight.
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
pub(crate) fn no_thread(call: &'static str) -> NcclError {
    NcclError::misuse(call, MisuseKind::Context { why: "the system gives no more threads, and it needs one" })
}

/// Runs something on a thread of its own, and counts it until it is done. `None` if there is no thread.
fn in_the_background<R: Send + 'static>(name: &str, work: impl FnOnce() -> R + Send + 'static) -> Option<Receiver<R>> {
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            ENDING.fetch_sub(1, Ordering::Release);
        }
    }
    ENDING.fetch_add(1, Ordering::Relaxed);
    let counted = Counted;
    let (sender, receiver) = channel();
    let body = move || {
        let done = work();
        // Before the answer: the caller that has it sees that nothing is being ended any more.
        drop(counted);
        // Who asked may have given up.
        let _ = sender.send(done);
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(body).ok().map(|_| receiver)
}

/// Does something inside a communicator's gate, for a destructor: now if it is free, on another thread if it is busy, not at all if there is
/// nothing left to do it to.
pub(crate) fn when_possible(
    inner: Arc<Inner>,
    allowed: Allowed,
    patience: Duration,
    work: impl FnOnce(&Inner) -> Result<(), NcclError> + Send + 'static,
) {
    // What is freed meanwhile takes everything with it.
    fn free(inner: &Inner, inside: &Inside<'_>, work: impl FnOnce(&Inner) -> Result<(), NcclError>) {
        if inside.dive().is_ok()
            && let Err(error) = work(inner)
        {
            tracing::warn!(%error, "while something was freed");
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
    drop(in_the_background("peerweave-free", move || {
        let _ = set_current(&inner.context);
        if let Ok(inside) = inner.gate.enter(allowed, || inner.deadline()) {
            free(&inner, &inside, work);
        }
    }));
}
