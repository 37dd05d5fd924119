//! The entry to NVSHMEM: one thread at a time, with a deadline, and only while NVSHMEM is usable.
//!
//! `gate.rs` implements the lock, and the worker thread for calls that wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use peerweave_driver::bind_if_needed;
use peerweave_dylib::MissingSymbol;

use super::Comm;
use super::gate::{Gate, Inside, NoAnswer, Sent, Worker};
use crate::error::{DeadState, MisuseKind, NvshmemError};
use crate::sys::{Api, Families};

/// Name of the call that finalises NVSHMEM, as errors report it.
pub(crate) const END: &str = "nvshmemx_hostlib_finalize";

/// The [gate](Gate) (the lock for calls of NVSHMEM), the worker thread, and the reason why NVSHMEM
/// can no longer be called.
pub(crate) struct Entry {
    gate: Arc<Gate>,
    worker: Worker,
    dead: OnceLock<DeadState>,
    /// Whether a thread is finalising NVSHMEM. While this flag is set, all other calls return an
    /// error.
    ending: AtomicBool,
}

impl Entry {
    pub(crate) fn new(gate: Arc<Gate>, worker: Worker) -> Self {
        Self { gate, worker, dead: OnceLock::new(), ending: AtomicBool::new(false) }
    }
}

impl Comm {
    /// Returns an error if NVSHMEM can no longer be called.
    #[inline]
    pub(crate) fn check_usable(&self, call: &'static str) -> Result<(), NvshmemError> {
        self.nvshmem.not_forked(call)?;
        match self.entry.dead.get() {
            None => Ok(()),
            Some(state) => Err(NvshmemError::Dead { call, state: state.clone() }),
        }
    }

    /// Returns the reason why NVSHMEM can no longer be called, or `None` if it can be called.
    pub(crate) fn dead_state(&self) -> Option<&DeadState> {
        self.entry.dead.get()
    }

    /// Makes all later calls fail with `state`.
    pub(crate) fn mark_dead(&self, state: DeadState) {
        // If a reason is already set, that reason stays.
        let _ = self.entry.dead.set(state);
    }

    #[inline]
    fn enter(&self, call: &'static str) -> Result<Inside<'_>, NvshmemError> {
        // This check is first, because in a forked child the gate may be held by a thread that
        // exists only in the parent.
        self.check_usable(call)?;
        let inside = match self.entry.gate.try_enter(call) {
            Some(inside) => inside,
            None => self.enter_later(call)?,
        };
        // The call that held the gate before may have made NVSHMEM unusable.
        self.check_usable(call)?;
        if self.entry.ending.load(Ordering::Relaxed) && call != END {
            return Err(NvshmemError::misuse(
                call,
                MisuseKind::Context {
                    why: "another thread is finalising NVSHMEM; repeat this call only if the other thread's call of finalize returns an error",
                },
            ));
        }
        if self.deferred.is_any() {
            self.run_deferred();
        }
        Ok(inside)
    }

    #[cold]
    fn enter_later(&self, call: &'static str) -> Result<Inside<'_>, NvshmemError> {
        let start = Instant::now();
        self.entry.gate.enter(call, self.deadline).map_err(|other| {
            tracing::warn!(call, inside = other, "timed out: another call is still inside NVSHMEM");
            // If the other call is past its own deadline, NVSHMEM is unusable, and that error is
            // returned.
            self.check_usable(call).err().unwrap_or_else(|| self.late(call, start.elapsed(), Vec::new()))
        })
    }

    /// Calls a function of NVSHMEM that does not wait for other PEs or the device. See invariant
    /// [C2] of `comm`.
    #[inline]
    pub(crate) fn issue<R>(
        &self,
        call: &'static str,
        function: impl FnOnce(&'static Api, &'static Families) -> Result<R, MissingSymbol>,
    ) -> Result<R, NvshmemError> {
        let _inside = self.enter_bound(call)?;
        function(self.nvshmem.raw_api(), self.nvshmem.raw_families()).map_err(|missing| self.missing(call, &missing))
    }

    /// Acquires the [gate](Gate), and makes the device's context current in this thread. This
    /// function is not part of the generic function [`issue`](Self::issue), so that it is compiled
    /// only once.
    #[inline(never)]
    fn enter_bound(&self, call: &'static str) -> Result<Inside<'_>, NvshmemError> {
        let inside = self.enter(call)?;
        bind_if_needed(&self.context)?;
        Ok(inside)
    }

    #[cold]
    fn missing(&self, call: &'static str, missing: &MissingSymbol) -> NvshmemError {
        self.nvshmem.unsupported_function(call, missing)
    }

    /// Calls a function of NVSHMEM that returns a status code, by [`issue`](Self::issue). Returns
    /// an error if the code is not success.
    #[inline]
    pub(crate) fn issue_status(
        &self,
        call: &'static str,
        function: impl FnOnce(&'static Api, &'static Families) -> Result<i32, MissingSymbol>,
    ) -> Result<(), NvshmemError> {
        let code = self.issue(call, function)?;
        self.nvshmem.check(call, code)
    }

    /// Calls a function of NVSHMEM that waits for other PEs or for the device. The context's
    /// deadline limits the wait. See invariant [C2] of `comm`.
    pub(crate) fn block<R: Send + 'static>(
        &self,
        call: &'static str,
        function: impl FnOnce(&'static Api, &'static Families) -> Result<R, MissingSymbol> + Send + 'static,
    ) -> Result<R, NvshmemError> {
        self.enter_blocking(call)?.block(call, function)
    }

    /// Acquires the [gate](Gate) for calls that wait for other PEs or for the device. Fails if the
    /// context's deadline passes first.
    pub(crate) fn enter_blocking(&self, call: &'static str) -> Result<Entered<'_>, NvshmemError> {
        let inside = self.enter(call)?.send(&self.entry.gate);
        Ok(Entered { comm: self, inside: Some(inside) })
    }

    /// Acquires the [gate](Gate) if the gate is free, or returns `None`.
    pub(crate) fn try_enter(&self, call: &'static str) -> Option<Inside<'_>> {
        self.entry.gate.try_enter(call)
    }

    /// Starts finalising NVSHMEM. All other calls are refused while the returned guard exists.
    /// After the guard has been dropped, other calls are possible again, unless NVSHMEM has been
    /// finalised.
    pub(crate) fn begin_finalize(&self) -> Result<Finalizing<'_>, NvshmemError> {
        // Set while this thread holds the gate, so every later caller of the gate sees the value.
        let _inside = self.enter(END)?;
        self.entry.ending.store(true, Ordering::Relaxed);
        Ok(Finalizing(self))
    }
}

/// A guard that exists while a thread finalises NVSHMEM. During that time, all other calls of
/// NVSHMEM are refused. After the guard has been dropped, other calls are possible again, unless
/// NVSHMEM has been finalised.
pub(crate) struct Finalizing<'a>(&'a Comm);

impl Drop for Finalizing<'_> {
    fn drop(&mut self) {
        self.0.entry.ending.store(false, Ordering::Relaxed);
    }
}

/// The acquired [gate](Gate). One thread uses this value to make several calls of NVSHMEM that wait
/// for other PEs or for the device. While this value exists, no other thread can call NVSHMEM.
pub(crate) struct Entered<'a> {
    comm: &'a Comm,
    /// The guard of the gate. `None` after a call has timed out or panicked, because the worker
    /// thread has taken the guard.
    inside: Option<Sent>,
}

impl Entered<'_> {
    /// Calls a function of NVSHMEM that waits for other PEs or for the device. The context's
    /// deadline limits the wait. See invariant [C2] of `comm`.
    pub(crate) fn block<R: Send + 'static>(
        &mut self,
        call: &'static str,
        function: impl FnOnce(&'static Api, &'static Families) -> Result<R, MissingSymbol> + Send + 'static,
    ) -> Result<R, NvshmemError> {
        let comm = self.comm;
        comm.check_usable(call)?;
        let (context, nvshmem, inside) = (Arc::clone(&comm.context), comm.nvshmem, self.inside.take());
        let run = move || {
            bind_if_needed(&context)?;
            function(nvshmem.raw_api(), nvshmem.raw_families()).map_err(|missing| nvshmem.unsupported_function(call, &missing))
        };
        match comm.entry.worker.run(inside, comm.deadline, run) {
            Ok((result, inside)) => {
                self.inside = inside;
                result
            }
            Err(NoAnswer::Late(waited)) => {
                comm.mark_dead(DeadState::Stuck { inside: call });
                Err(comm.late(call, waited, Vec::new()))
            }
            Err(NoAnswer::Panicked) => {
                comm.mark_dead(DeadState::Broken { by: call });
                Err(NvshmemError::Dead { call, state: DeadState::Broken { by: call } })
            }
        }
    }
}
