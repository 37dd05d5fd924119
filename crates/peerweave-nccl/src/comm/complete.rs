//! Completion of a call: waits until NCCL has finished the call's work on the host.
//!
//! `wait.rs` waits for work on the device. Invariant: before a call returns, NCCL has finished the
//! call on the host, or the communicator has been aborted ([C2] of `membership.rs`). So NCCL does
//! not launch the work of a call after the call has returned.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use peerweave_driver::relaxed;
use peerweave_dylib::MissingSymbol;

use crate::Nccl;
use crate::comm::abort::{ABORT_LIMIT, abort_closed, abort_together};
use crate::comm::siblings::LeftOut;
use crate::comm::wait::{expired, root_cause};
use crate::library::error::NcclError;
use crate::member::enter_all::Entered;
use crate::member::membership::{Abort, Inner, bounded};
use crate::member::state::{Allowed, Inside, State};
use crate::sys::{Api, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};

impl Inner {
    /// Waits until NCCL has finished a call for which NCCL returned `code`. The wait is necessary
    /// if the code is `ncclInProgress`. If NCCL does not finish, the communicator is aborted before
    /// this function returns ([C2] of `membership.rs`).
    #[inline]
    pub(crate) fn complete(
        self: &Arc<Self>,
        call: &'static str,
        code: ncclResult_t,
        inside: Inside<'_>,
    ) -> Result<(), NcclError> {
        if code == ncclResult_t::ncclSuccess { Ok(()) } else { self.complete_slowly(call, code, inside) }
    }

    /// Like [`complete`](Self::complete), for a call that is not issued on a stream.
    ///
    /// On a non-blocking communicator, a result code of success only means that such a call has
    /// started: a thread of NCCL may still write to the caller's memory. The reason is that
    /// `ncclDevCommCreate`, `ncclCommWindowRegister` and splits ignore the result of their own
    /// `ncclGroupEnd` (observed in 2.28 to 2.32). So this function queries the communicator until
    /// the call is complete.
    pub(crate) fn complete_started(
        self: &Arc<Self>,
        call: &'static str,
        code: ncclResult_t,
        inside: Inside<'_>,
    ) -> Result<(), NcclError> {
        self.complete(call, self.started(code), inside)
    }

    /// Converts the result code of a call that is not issued on a stream. On a non-blocking
    /// communicator, success only means that the call has started, so `ncclSuccess` becomes
    /// `ncclInProgress` (see [`complete_started`](Self::complete_started)). Returns every other
    /// code unchanged.
    pub(crate) fn started(&self, code: ncclResult_t) -> ncclResult_t {
        let may_go_on = !self.blocking && code == ncclResult_t::ncclSuccess;
        if may_go_on { ncclResult_t::ncclInProgress } else { code }
    }

    /// Calls a function of NCCL on the handle. During the call this thread holds the communicator's
    /// lock, and the device's context is current. Waits until NCCL has finished.
    ///
    /// # Errors
    /// The errors of [`enter`](Self::enter) and [`complete`](Self::complete); errors that NCCL
    /// returns.
    pub(crate) fn call(
        self: &Arc<Self>,
        name: &'static str,
        allowed: Allowed,
        function: impl FnOnce(&'static Api, ncclComm_t) -> Result<ncclResult_t, MissingSymbol>,
    ) -> Result<(), NcclError> {
        let inside = self.enter(name, allowed)?;
        self.call_inside(name, inside, function)
    }

    /// Like [`call`](Self::call), for a thread that already holds the communicator's lock.
    pub(crate) fn call_inside(
        self: &Arc<Self>,
        name: &'static str,
        inside: Inside<'_>,
        function: impl FnOnce(&'static Api, ncclComm_t) -> Result<ncclResult_t, MissingSymbol>,
    ) -> Result<(), NcclError> {
        self.bind()?;
        self.enter_blocking(name, &inside)?;
        // NCCL's allocations must not invalidate a capture of another thread.
        let code = relaxed(|| self.nccl.code(name, |api| function(api, self.handle.get())))?;
        self.complete_started(name, code, inside)
    }

    /// Like [`call`](Self::call), for a function that stores a result in memory. Returns this
    /// result. `initial` is the content of the memory before the call. If NCCL does not finish,
    /// this memory is leaked, because NCCL may still write to it.
    ///
    /// # Errors
    /// As for [`call`](Self::call).
    pub(crate) fn call_into<T>(
        self: &Arc<Self>,
        name: &'static str,
        allowed: Allowed,
        initial: T,
        function: impl FnOnce(&'static Api, ncclComm_t, *mut T) -> Result<ncclResult_t, MissingSymbol>,
    ) -> Result<T, NcclError> {
        let place: *mut T = Box::into_raw(Box::new(initial));
        let result = self.call(name, allowed, |api, comm| function(api, comm, place));
        // SAFETY: the place came from the box above, and besides this call only NCCL has its
        // address, until the call is complete.
        unsafe { stored(place, result) }
    }

    #[cold]
    fn complete_slowly(self: &Arc<Self>, call: &'static str, code: ncclResult_t, inside: Inside<'_>) -> Result<(), NcclError> {
        match code {
            ncclResult_t::ncclInProgress => complete_group(call, Entered::One([(self, inside)]), self.deadline()),
            code => {
                // Reads NCCL's error text before the state changes, while the text still describes
                // this failure.
                let failure = self.failure(call, code);
                inside.leave_blocking();
                keep_failure(self);
                drop(inside);
                // An aborted call returns only when NCCL no longer uses its memory.
                if self.gate.is_closed() {
                    Abort::wait(self);
                }
                Err(root_cause(self, failure))
            }
        }
    }
}

/// Queries NCCL after it has refused a call, and marks the communicator as failed if NCCL still
/// reports an error. On a non-blocking communicator, NCCL keeps such an error and returns it for
/// every later call.
fn keep_failure(inner: &Inner) {
    if !inner.gate.is_closed() && !matches!(inner.ask(), Ok(ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress)) {
        let _ = inner.gate.change(State::Live, State::Failed);
    }
}

/// Number of consecutive queries of NCCL before the thread yields its processor. Each query takes
/// 10 to 40 ns. From NCCL 2.23.4 on, a thread of NCCL completes every call on a non-blocking
/// communicator, and that thread may need this processor.
const IN_A_ROW: u32 = 50;

/// Waiting time during which a thread yields its processor between queries. After this time the
/// thread sleeps between queries.
const YIELDS: Duration = Duration::from_millis(1);

/// Waits like [`complete_all`]. If NCCL finishes without an error within microseconds, this
/// function is cheaper than `complete_all`.
fn complete_group(call: &'static str, inside: Entered<'_>, deadline: Duration) -> Result<(), NcclError> {
    if is_done_soon(&inside) { Ok(()) } else { complete_all(call, inside.into_vec(), deadline) }
}

/// Queries NCCL at most [`IN_A_ROW`] times. Returns whether NCCL has finished without an error.
/// This function discards errors, because NCCL reports an error again at the next query.
fn is_done_soon(inside: &[(&Arc<Inner>, Inside<'_>)]) -> bool {
    leave_blocking_all(inside);
    let mut rest = IN_A_ROW;
    inside.iter().all(|(inner, _)| {
        while rest > 0 && !inner.gate.is_closed() {
            match inner.ask() {
                Ok(ncclResult_t::ncclInProgress) => rest -= 1,
                answer => return matches!(answer, Ok(ncclResult_t::ncclSuccess)),
            }
            std::hint::spin_loop();
        }
        false
    })
}

/// Calls `ready` until it returns true or the deadline has passed. Returns whether `ready` returned
/// true.
fn yield_until(deadline: Instant, mut ready: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if ready() {
            return true;
        }
        let now = Instant::now();
        if now >= deadline {
            return false;
        }
        match now - start {
            waited if waited < YIELDS => std::thread::yield_now(),
            waited => std::thread::sleep((waited / 16).min(YIELDS).min(deadline - now)),
        }
    }
}

/// Waits until NCCL has finished its work on the host for the communicators in `members`. If the
/// work of a communicator is not finished by the deadline, aborts the communicator. So NCCL
/// launches no work after this function has returned ([C2] of `membership.rs`).
#[cold]
pub(crate) fn complete_all(
    call: &'static str,
    mut members: Vec<(&Arc<Inner>, Inside<'_>)>,
    deadline: Duration,
) -> Result<(), NcclError> {
    let start = Instant::now();
    let (mut first_error, mut failed, mut cut_off) = (None, None, Vec::new());
    // From here on this thread only makes short queries of NCCL, so an aborting thread waits for
    // this thread.
    members.iter().for_each(|(_, inside)| inside.leave_blocking());
    // All members belong to one group, so a check of the first member finds a rank that was omitted
    // from the group.
    let mut left_out = members.first().map(|(inner, _)| (*inner, LeftOut::new(deadline)));
    let mut stopped = None;
    yield_until(start + bounded(deadline), || {
        let mut index = 0;
        while index < members.len() {
            let inner = members[index].0;
            // The aborting thread waits for this thread to leave the gate.
            let state = if inner.gate.is_closed() {
                cut_off.push(inner);
                Err(inner.abort_error(call))
            } else {
                inner.ask()
            };
            match state {
                Ok(ncclResult_t::ncclInProgress) => index += 1,
                Ok(ncclResult_t::ncclSuccess) => drop(members.swap_remove(index)),
                Ok(code) => {
                    // Reads NCCL's error text before the state changes, while the text still
                    // describes this failure.
                    first_error.get_or_insert_with(|| inner.failure(call, code));
                    failed.get_or_insert(inner);
                    // A revocation also ends calls. A revoked communicator stays revoked, because
                    // the caller can still split or shrink it.
                    let _ = inner.gate.change(State::Live, State::Failed);
                    // An abort that began after the gate was checked may have caused the failure.
                    if inner.gate.is_closed() {
                        cut_off.push(inner);
                    }
                    drop(members.swap_remove(index));
                }
                Err(error) => {
                    first_error.get_or_insert(error);
                    drop(members.swap_remove(index));
                }
            }
        }
        if let Some((inner, left_out)) = left_out.as_mut().filter(|_| !members.is_empty()) {
            stopped = left_out.look(call, inner, start.elapsed()).err();
        }
        members.is_empty() || stopped.is_some()
    });
    if !members.is_empty() {
        // NCCL could launch the work later, on memory that is borrowed only until this call
        // returns. An abort prevents that launch.
        let mut late = Vec::new();
        for (inner, _) in &members {
            if inner.gate.close(State::Aborted).is_ok() {
                late.push(Arc::clone(inner));
            } else if inner.gate.is_closed() {
                // Another thread, such as the watchdog, has begun the abort after the loop checked.
                cut_off.push(inner);
            }
        }
        if let Some((inner, _)) = members.first() {
            first_error.get_or_insert_with(|| stopped.unwrap_or_else(|| expired(inner, start.elapsed()).of_call(call)));
        }
        drop(members);
        for error in abort_closed(&late, ABORT_LIMIT).into_iter().filter_map(Result::err) {
            tracing::error!(%error, "could not abort the communicator of a call that did not return");
        }
        late.iter().for_each(|inner| Abort::wait(inner));
    } else {
        drop(members);
    }
    // The aborting threads do not wait for this thread, because this thread has left all gates
    // above.
    cut_off.into_iter().for_each(|inner| Abort::wait(inner));
    match (first_error, failed) {
        (Some(error), Some(inner)) => Err(root_cause(inner, error)),
        (Some(error), None) => Err(error),
        (None, _) => Ok(()),
    }
}

/// Marks this thread as possibly blocked in NCCL, in the lock of each communicator in `inside`. If
/// another thread has aborted or finalized one of these communicators, removes all marks and fails.
///
/// A thread that aborts or finalizes a communicator waits until no other thread holds the
/// communicator's lock. It waits for a marked thread only for a limited time, and for other threads
/// without a time limit.
#[inline]
pub(crate) fn enter_blocking_all(call: &'static str, inside: &[(&Arc<Inner>, Inside<'_>)]) -> Result<(), NcclError> {
    /// Number of the last group that contained several communicators. Groups are numbered from 1.
    static GROUPS: AtomicU64 = AtomicU64::new(0);
    if inside.len() > 1 {
        let group = GROUPS.fetch_add(1, Ordering::Relaxed) + 1;
        inside.iter().for_each(|(inner, _)| inner.group.store(group, Ordering::Release));
    }
    let entered = inside.iter().try_for_each(|(inner, inside)| inner.enter_blocking(call, inside));
    if entered.is_err() {
        leave_blocking_all(inside);
    }
    entered
}

/// Removes the marks that [`enter_blocking_all`] has set on the communicators. Called after NCCL
/// has returned.
#[inline]
pub(crate) fn leave_blocking_all(inside: &[(&Arc<Inner>, Inside<'_>)]) {
    for (inner, one) in inside {
        one.leave_blocking();
        if inside.len() > 1 {
            inner.group.store(0, Ordering::Release);
        }
    }
}

/// Makes NCCL refuse the group that this thread has started: `ncclGroupEnd` then launches nothing,
/// waits for no rank, and returns an error.
///
/// This function issues an invalid call inside the group. NCCL records the error of that call for
/// the group before any other check (observed in 2.19 to 2.30).
#[cold]
pub(crate) fn refuse_group(nccl: Nccl) {
    let (kind, op) = (ncclDataType_t::ncclUint8, ncclRedOp_t::ncclSum);
    let (from, to) = (std::ptr::null(), std::ptr::null_mut());
    let (comm, stream) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: NCCL refuses a communicator that is null, and does not follow the other pointers.
    let refused = nccl.code("group", |api| unsafe { api.ncclAllReduce(from, to, 0, kind, op, comm, stream) });
    debug_assert!(!matches!(refused, Ok(ncclResult_t::ncclSuccess)));
}

/// Completes a group of calls. `ended` is the result of `ncclGroupEnd`.
///
/// `is_partial` states that NCCL has received only some calls of the group. NCCL would wait for the
/// missing calls until the deadline, so this function aborts the communicators of the group.
#[inline]
pub(crate) fn end_group(
    call: &'static str,
    nccl: Nccl,
    ended: Result<ncclResult_t, NcclError>,
    inside: Entered<'_>,
    is_partial: bool,
    deadline: Duration,
) -> Result<(), NcclError> {
    if inside.len() > 1 {
        leave_blocking_all(&inside);
    }
    match ended {
        Ok(ncclResult_t::ncclSuccess) if !is_partial => Ok(()),
        Ok(ncclResult_t::ncclInProgress) if !is_partial => complete_group(call, inside, deadline),
        ended => end_badly(call, nccl, ended, inside, is_partial),
    }
}

#[cold]
fn end_badly(
    call: &'static str,
    nccl: Nccl,
    ended: Result<ncclResult_t, NcclError>,
    inside: Entered<'_>,
    is_partial: bool,
) -> Result<(), NcclError> {
    let cut_off = inside.iter().find(|(inner, _)| inner.gate.is_closed());
    let ended = match ended {
        Ok(ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress) => Ok(()),
        // After an abort NCCL's result code has no meaning.
        Ok(_) if let Some((inner, _)) = cut_off => Err(inner.abort_error(call)),
        // Reads NCCL's error text before other threads may call NCCL, while the text still
        // describes this failure.
        Ok(code) => Err(nccl.failure(call, code, None)),
        Err(error) => Err(error),
    };
    for (inner, inside) in inside.iter() {
        inside.leave_blocking();
        keep_failure(inner);
    }
    let inners: Vec<_> = inside.iter().map(|(inner, _)| Arc::clone(inner)).collect();
    // The aborting thread waits for this thread to leave the gates.
    drop(inside);
    if is_partial && let Err(error) = abort_together(&inners, ABORT_LIMIT) {
        tracing::error!(%error, "NCCL received only some calls of a group, and the group's communicators could not be aborted");
    }
    inners.iter().filter(|inner| inner.gate.is_closed()).for_each(|inner| Abort::wait(inner));
    ended.map_err(|error| inners.first().map_or_else(|| error.clone(), |inner| root_cause(inner, error.clone())))
}

/// Returns the value that an NCCL call has stored at `place`, and frees this memory. `result` is
/// the result of the call. If the call has failed, returns its error. If NCCL may still write to
/// the memory after the error, leaks the memory.
///
/// # Safety
/// `place` came from `Box::into_raw`. The memory belongs to the caller, or to NCCL while the call
/// is in progress.
unsafe fn stored<T>(place: *mut T, result: Result<(), NcclError>) -> Result<T, NcclError> {
    let is_done = match &result {
        Ok(()) | Err(NcclError::Nccl(_) | NcclError::Unsupported(_)) => true,
        Err(_) => false,
    };
    // SAFETY: NCCL is done with the place, which is the caller's box.
    let stored = is_done.then(|| *unsafe { Box::from_raw(place) });
    result.map(|()| stored.expect("a successful call has stored a value"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::error::{CommunicatorName, MisuseKind, Timeout};
    use crate::{DeadState, Failure, Rank, ResultCode, Version};

    #[test]
    fn output_of_an_unfinished_call_stays_allocated() {
        let name = Arc::new(CommunicatorName { name: None, rank: Rank::new(0), ranks: 2, number: 1 });
        let timeout = || {
            let waited = Duration::from_secs(1);
            Timeout { call: "register", sequence: None, waited, communicator: None, missing: Vec::new(), reports: Vec::new() }
        };
        let failure = || Failure {
            call: "ncclCommRegister",
            code: ResultCode::INTERNAL_ERROR,
            meaning: "",
            version: Version::new(2, 32, 3),
            last_error: String::new(),
            communicator: None,
        };
        let dead = NcclError::Dead { call: "register", communicator: name, state: DeadState::Aborted };
        let left_out = NcclError::misuse("register", MisuseKind::Context { why: "a rank was omitted" });
        for (result, is_freed) in [
            (Ok(()), true),
            (Err(failure().into()), true),
            (Err(timeout().into()), false),
            (Err(dead), false),
            (Err(left_out), false),
        ] {
            let value = Arc::new(());
            let place = Box::into_raw(Box::new(Arc::clone(&value)));
            let text = format!("{result:?}");
            // SAFETY: the place came from a box, and NCCL never received its address.
            drop(unsafe { stored(place, result) });
            assert_eq!(Arc::strong_count(&value), if is_freed { 1 } else { 2 }, "{text}");
        }
    }
}
