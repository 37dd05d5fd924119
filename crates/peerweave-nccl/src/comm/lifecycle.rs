//! How a communicator ends: in order, by force, in the background; and how it rests.
//!
//! What waits for NCCL without a limit of NCCL's own does so on a thread of its own.
//!
//! Invariant: a handle is given to `ncclCommDestroy` or `ncclCommAbort` once, by who closed its
//! gate.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use peerweave_driver::{deadline_after, wait_until};

use crate::comm::abort::{ABORT_LIMIT, abort_closed, abort_together};
use crate::comm::communicator::Communicator;
use crate::comm::ending::{self, Ending, no_thread};
use crate::comm::watchdog;
use crate::library::error::{MisuseKind, NcclError};
use crate::member::membership::{self, Inner, bounded};
use crate::member::spans;
use crate::member::state::{Allowed, State};
use crate::sys::{self, ncclResult_t};

/// How long the driver may take to let go of what destroyed graphs held.
const GRAPHS_GO: Duration = Duration::from_secs(2);

impl Communicator {
    /// Ends the membership in order: what was issued completes, and NCCL's resources are freed.
    ///
    /// It takes the handle; clones of it give [`NcclError::Dead`] afterwards.
    ///
    /// NCCL frees memory that its peers have mapped, for which the driver waits until those devices
    /// are idle. So where several ranks are threads of one process, let all of them come back from
    /// this before one of them enqueues anything that waits for another rank.
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
    /// All ranks. A thread that has several ranks ends them with
    /// [`finalize_all`](Self::finalize_all).
    ///
    /// # Errors
    /// [`NcclError::Misuse`] if captured graphs still use it after two seconds (then nothing was
    /// done); [`NcclError::Timeout`] if others did not come or work does not end, after which it is
    /// aborted; [`NcclError::Dead`] if it was ended before, through another handle.
    pub fn finalize(self, deadline: Duration) -> Result<(), NcclError> {
        Self::finalize_all(vec![self], deadline)
    }

    /// Ends several memberships of this process in order.
    ///
    /// # Collective
    /// As [`finalize`](Self::finalize).
    ///
    /// # Errors
    /// As [`finalize`](Self::finalize): the first. All are ended nevertheless, unless a graph uses
    /// one of them.
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
                    // Only who asks something can be left, and leaves in no time: who revoked it
                    // would have changed its state.
                    inner.gate.drain(Duration::ZERO);
                    ends.push((inner, Ending::of(inner, State::Live, rest()).start()));
                }
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        for (inner, end) in ends {
            // The thread has the deadline itself, and aborts after it: a little more, to hear of
            // it.
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

    /// Ends the membership by force: work that runs on the device ends soon, with unspecified
    /// results, and calls of other threads that are stuck return an error. Needs no turn and no
    /// other rank.
    ///
    /// Returns when NCCL has freed the communicator, at most after `limit`; NCCL goes on in the
    /// background then. While captured graphs use the communicator, NCCL keeps its memory until
    /// they are destroyed, and this returns without waiting for that.
    ///
    /// # Errors
    /// [`NcclError::Timeout`] if NCCL has not ended by then; [`NcclError::Dead`] if it was ended
    /// before; NCCL's own.
    pub fn abort(&self, limit: Duration) -> Result<(), NcclError> {
        const CALL: &str = "abort";
        self.inner.nccl.not_forked(CALL)?;
        let _span = spans::of(&self.inner, CALL);
        self.inner.gate.close(State::Aborted).map_err(|state| self.inner.dead(CALL, state))?;
        abort_closed(std::slice::from_ref(&self.inner), bounded(limit)).pop().unwrap_or(Ok(()))
    }

    /// Aborts every communicator of this process, each from a thread of its own: aborting one after
    /// the other can wait forever, since they share devices. Gives how many were aborted.
    ///
    /// # Errors
    /// As [`abort`](Self::abort): the first.
    pub fn abort_all(limit: Duration) -> Result<usize, NcclError> {
        abort_together(&membership::all(), bounded(limit))
    }

    /// Waits until the communicators that were dropped so far are ended, at most so long. Gives
    /// whether they are.
    ///
    /// For the end of a program, which would otherwise take their threads with it.
    pub fn settle(deadline: Duration) -> bool {
        // In this order: a last handle that the watchdog drops is counted before its look is over.
        let ended = || Ok(!watchdog::is_looking() && ending::count() == 0);
        wait_until::<std::convert::Infallible>(Instant::now() + bounded(deadline), ended).unwrap_or(false)
    }

    /// Ends what runs on the communicator, and keeps it for [`split`](Self::split) and
    /// [`shrink`](Self::shrink). NCCL 2.28.7.
    ///
    /// What is stuck on the device ends. Where the communicator blocks, so does what is stuck in a
    /// call of another thread. Where it does not block, this takes its turn as other calls do: NCCL
    /// frees a call that it is still at work on, and later frees it again ([`abort`](Self::abort)
    /// ends such a call).
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] before; [`NcclError::Dead`], also where it was revoked before;
    /// [`NcclError::Timeout`] by the communicator's deadline; NCCL's own.
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
    /// [`NcclError::Misuse`] if captured graphs still use it after two seconds, since they would
    /// replay calls into memory that was given back; [`NcclError::Unsupported`] before;
    /// [`NcclError::Dead`]; NCCL's own.
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
        // Nobody gets in between, since the state is changed to what is not live before the gate is
        // left.
        inner.gate.change(from, State::Suspended).map_err(|state| inner.dead(call, state))?;
        let settled = inner.settle(call, code, inside);
        let end = if settled.is_ok() { to } else { State::Failed };
        let _ = inner.gate.change(State::Suspended, end);
        settled
    }
}

/// An error while captured graphs use one of them.
///
/// The driver lets go of what a destroyed graph held some time after the destruction, on a thread
/// of its own (seen on H200): that is waited for, at most for `patience`, and not for long.
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

/// Revokes what does not block: nobody else is inside, and NCCL has nothing left of an earlier
/// call.
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
        // SAFETY: the handle is live: who frees it waits for who looks in, or finds that it is
        // stuck in here, which NCCL lets another thread abort. NCCL lets this function run beside a
        // call that is stuck.
        inner.nccl.code(call, |api| unsafe { api.ncclCommRevoke(inner.handle.get(), sys::NCCL_REVOKE_DEFAULT) })
    });
    let result = inner.check(call, code.map_err(|state| inner.dead(call, state))??);
    if result.is_err() {
        let _ = inner.gate.change(State::Revoked, before);
    }
    // Who ended it meanwhile left nothing to split or shrink.
    if inner.gate.is_closed() { result.and(Err(inner.dead(call, inner.gate.state()))) } else { result }
}

/// Notes that it is revoked, and gives what it was: NCCL does it once, for who was first; not what
/// was seen closed a moment ago.
fn revoked(inner: &Inner, call: &'static str) -> Result<State, NcclError> {
    match inner.gate.set(State::Revoked) {
        Ok(State::Revoked) => Err(inner.dead(call, State::Revoked)),
        before => before.map_err(|state| inner.dead(call, state)),
    }
}
