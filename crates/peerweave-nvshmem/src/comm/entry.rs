//! The way into NVSHMEM: one thread at a time, with a deadline, and not after something left the
//! library unusable.
//!
//! The lock and the thread for calls that wait are `gate.rs`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use peerweave_driver::bind_if_needed;
use peerweave_dylib::MissingSymbol;

use super::Comm;
use super::gate::{Gate, Inside, NoAnswer, Sent, Worker};
use crate::error::{DeadState, MisuseKind, NvshmemError};
use crate::sys::{Api, Families};

/// The call that ends NVSHMEM.
pub(crate) const END: &str = "nvshmemx_hostlib_finalize";

/// Who may enter, and whether anyone still may.
pub(crate) struct Entry {
    gate: Arc<Gate>,
    worker: Worker,
    dead: OnceLock<DeadState>,
    /// Set while a thread ends NVSHMEM: then it alone gets in.
    ending: AtomicBool,
}

impl Entry {
    pub(crate) fn new(gate: Arc<Gate>, worker: Worker) -> Self {
        Self { gate, worker, dead: OnceLock::new(), ending: AtomicBool::new(false) }
    }
}

impl Comm {
    /// Whether NVSHMEM can be called, and why not.
    #[inline]
    pub(crate) fn alive(&self, call: &'static str) -> Result<(), NvshmemError> {
        self.nvshmem.not_forked(call)?;
        match self.entry.dead.get() {
            None => Ok(()),
            Some(state) => Err(NvshmemError::Dead { call, state: state.clone() }),
        }
    }

    /// Why NVSHMEM cannot be called any more.
    pub(crate) fn dead_state(&self) -> Option<&DeadState> {
        self.entry.dead.get()
    }

    /// No more calls after this.
    pub(crate) fn mark_dead(&self, state: DeadState) {
        // The first cause counts.
        let _ = self.entry.dead.set(state);
    }

    #[inline]
    fn enter(&self, call: &'static str) -> Result<Inside<'_>, NvshmemError> {
        // First of all: in a fork, a thread that is not there may hold the gate's lock.
        self.alive(call)?;
        let inside = match self.entry.gate.try_enter(call) {
            Some(inside) => inside,
            None => self.enter_later(call)?,
        };
        // What kept the gate shut may have been what ended it.
        self.alive(call)?;
        if self.entry.ending.load(Ordering::Relaxed) && call != END {
            return Err(NvshmemError::misuse(call, MisuseKind::Context { why: "another thread is ending NVSHMEM" }));
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
            tracing::warn!(call, inside = other, "another call is still inside NVSHMEM");
            // That one may be well within its own deadline.
            self.alive(call).err().unwrap_or_else(|| self.late(call, start.elapsed(), Vec::new()))
        })
    }

    /// Calls NVSHMEM for something that does not wait for others [C2].
    #[inline]
    pub(crate) fn issue<R>(
        &self,
        call: &'static str,
        function: impl FnOnce(&'static Api, &'static Families) -> Result<R, MissingSymbol>,
    ) -> Result<R, NvshmemError> {
        let _inside = self.enter_bound(call)?;
        function(self.nvshmem.raw_api(), self.nvshmem.raw_families()).map_err(|missing| self.missing(call, &missing))
    }

    /// Enters, with the context bound to this thread. Not generic, so that it is compiled once.
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

    /// As [`issue`](Self::issue), for functions that return a status.
    #[inline]
    pub(crate) fn issue_status(
        &self,
        call: &'static str,
        function: impl FnOnce(&'static Api, &'static Families) -> Result<i32, MissingSymbol>,
    ) -> Result<(), NvshmemError> {
        let code = self.issue(call, function)?;
        self.nvshmem.check(call, code)
    }

    /// Calls NVSHMEM for something that waits for others or for the device, with the context's
    /// deadline [C2].
    pub(crate) fn block<R: Send + 'static>(
        &self,
        call: &'static str,
        function: impl FnOnce(&'static Api, &'static Families) -> Result<R, MissingSymbol> + Send + 'static,
    ) -> Result<R, NvshmemError> {
        self.enter_blocking(call)?.block(call, function)
    }

    /// Goes inside for calls that wait, at most for the context's deadline.
    pub(crate) fn enter_blocking(&self, call: &'static str) -> Result<Entered<'_>, NvshmemError> {
        let inside = self.enter(call)?.send(&self.entry.gate);
        Ok(Entered { comm: self, inside: Some(inside) })
    }

    /// Enters if no thread is inside.
    pub(crate) fn try_enter(&self, call: &'static str) -> Option<Inside<'_>> {
        self.entry.gate.try_enter(call)
    }

    /// Lets nobody in from now on but the end. What others had enqueued by then is noted.
    pub(crate) fn begin_end(&self) -> Result<EndBegun<'_>, NvshmemError> {
        // Inside, so that nobody else is: whoever comes later sees it.
        let _inside = self.enter(END)?;
        self.entry.ending.store(true, Ordering::Relaxed);
        Ok(EndBegun(self))
    }
}

/// Ending NVSHMEM has begun. Where it does not succeed, others get in again.
pub(crate) struct EndBegun<'a>(&'a Comm);

impl Drop for EndBegun<'_> {
    fn drop(&mut self) {
        self.0.entry.ending.store(false, Ordering::Relaxed);
    }
}

/// The way into NVSHMEM for a row of calls that wait. Nobody else gets in while this lives.
pub(crate) struct Entered<'a> {
    comm: &'a Comm,
    /// None while a call has it that never came back.
    inside: Option<Sent>,
}

impl Entered<'_> {
    /// Calls NVSHMEM for something that waits for others or for the device, with the context's
    /// deadline [C2].
    pub(crate) fn block<R: Send + 'static>(
        &mut self,
        call: &'static str,
        function: impl FnOnce(&'static Api, &'static Families) -> Result<R, MissingSymbol> + Send + 'static,
    ) -> Result<R, NvshmemError> {
        let comm = self.comm;
        comm.alive(call)?;
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
