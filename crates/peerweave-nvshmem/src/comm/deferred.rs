//! Calls of NVSHMEM by destructors. A destructor must not wait for the gate or for a stream. The
//! call is made immediately if the gate is free, otherwise by the next thread that acquires it.
//!
//! Invariant: a resource that NVSHMEM still uses stays alive forever, unless NVSHMEM has ended. No
//! destructor of the user runs while the gate is held.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use peerweave_driver::{CudaContext, Keep, bind_if_needed, with_context_kept};

use crate::comm::Comm;
use crate::comm::streams::Streams;
use crate::error::{DeadState, NvshmemError};

/// A value used by NVSHMEM, or by this crate for it. After the last handle is dropped, a thread of
/// `peerweave-driver` drops the value, because its destructor may panic, wait or call NVSHMEM.
#[derive(Clone)]
pub(crate) struct Held(Arc<Value>);

struct Value {
    context: Arc<CudaContext>,
    keep: Option<Keep>,
}

impl Held {
    pub(crate) fn new(context: &Arc<CudaContext>, keep: Keep) -> Self {
        Self(Arc::new(Value { context: Arc::clone(context), keep: Some(keep) }))
    }

    /// Keeps the value alive forever.
    pub(crate) fn leak(&self) {
        std::mem::forget(Arc::clone(&self.0));
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        if let Some(keep) = self.keep.take() {
            peerweave_driver::retire(&self.context, None, Box::new(move || drop(keep)));
        }
    }
}

/// A local call of NVSHMEM that does not wait, with the values that must live until it is made.
pub(crate) struct DeferredCall {
    pub(crate) call: &'static str,
    pub(crate) run: fn(&Comm, usize) -> Result<(), NvshmemError>,
    pub(crate) address: usize,
    /// Streams that must complete before the call.
    pub(crate) streams: Option<Arc<Streams>>,
    pub(crate) held: Held,
}

/// Calls that destructors could not make immediately.
#[derive(Default)]
pub(crate) struct Deferred {
    calls: Mutex<Vec<DeferredCall>>,
    /// Whether there may be deferred calls. Set after a call is added and before its destructor
    /// tries the gate; the lock of the gate makes it visible to the next thread that acquires it.
    any: AtomicBool,
}

impl Deferred {
    /// Returns whether there may be deferred calls.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    fn add(&self, calls: impl IntoIterator<Item = DeferredCall>) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).extend(calls);
        self.any.store(true, Ordering::Relaxed);
    }

    fn take(&self) -> Vec<DeferredCall> {
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for DeferredCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {:#x}", self.call, self.address)
    }
}

impl DeferredCall {
    /// Makes the call. The caller holds the gate. If the call fails, its values are leaked.
    fn make(self, comm: &Comm) {
        if let Err(error) = (self.run)(comm, self.address) {
            tracing::warn!(%error, "NVSHMEM still uses the memory at {:#x}, so the memory is leaked", self.address);
            self.held.leak();
        }
    }
}

impl Comm {
    /// Makes the call now or later. Never waits, and does not change the thread's current context.
    pub(crate) fn defer(&self, deferred: DeferredCall) {
        let call = deferred.call;
        match self.dead_state() {
            Some(DeadState::Finalized) => return,
            // NVSHMEM may still use the resource.
            Some(_) => return deferred.held.leak(),
            None if self.nvshmem.not_forked(call).is_err() => return deferred.held.leak(),
            None => {}
        }
        self.deferred.add([deferred]);
        if let Some(_inside) = self.try_enter(call)
            && self.dead_state().is_none()
        {
            with_context_kept(|| self.run_deferred());
        }
    }

    /// Makes all deferred calls. The caller holds the gate.
    #[cold]
    pub(crate) fn run_deferred(&self) {
        let deferred = self.deferred.take();
        if deferred.is_empty() {
            return;
        }
        if let Err(error) = bind_if_needed(&self.context) {
            tracing::warn!(%error, "cannot make the device's context current");
        }
        let (ready, early): (Vec<_>, Vec<_>) =
            deferred.into_iter().partition(|call| call.streams.as_ref().is_none_or(|streams| streams.are_idle()));
        if !early.is_empty() {
            self.deferred.add(early);
        }
        ready.into_iter().for_each(|call| call.make(self));
    }
}
