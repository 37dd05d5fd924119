//! Calls of NVSHMEM that destructors make. A destructor must wait neither for a stream nor for the
//! gate, which is the lock for calls of NVSHMEM. If the gate is free and the streams are idle, the
//! destructor makes its call immediately. If not, the call is stored, and a thread that acquires
//! the gate later makes the call.
//!
//! Invariants: a resource that NVSHMEM may still use is never released before NVSHMEM has been
//! finalised. No destructor of the user runs while the gate is held.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use peerweave_driver::{CudaContext, Keep, bind_if_needed, with_context_kept};

use crate::comm::Comm;
use crate::comm::streams::Streams;
use crate::error::{DeadState, NvshmemError};

/// A counted handle to a value that must live as long as NVSHMEM needs the value. After the last
/// handle has been dropped, a thread of `peerweave-driver` drops the value. The reason is that the
/// destructor of the value may panic, wait or call NVSHMEM.
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

    /// Leaks the value: its destructor never runs, even after all handles have been dropped.
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

/// A call of NVSHMEM that a destructor has requested. The call is made immediately or later, and
/// does not wait for other PEs. This struct also contains the values that must live until the call
/// is made.
pub(crate) struct DeferredCall {
    pub(crate) call: &'static str,
    pub(crate) run: fn(&Comm, usize) -> Result<(), NvshmemError>,
    pub(crate) address: usize,
    /// The streams that must be idle before the deferred call is made; `None` if the call depends
    /// on no stream.
    pub(crate) streams: Option<Arc<Streams>>,
    pub(crate) held: Held,
}

/// The list of the NVSHMEM calls that destructors have requested but could not make immediately.
#[derive(Default)]
pub(crate) struct Deferred {
    calls: Mutex<Vec<DeferredCall>>,
    /// Set while `calls` may be non-empty. A destructor first adds its call to `calls`, then sets
    /// this flag, and then tries to acquire the gate. The gate's lock makes the flag visible to the
    /// next thread that acquires the gate.
    any: AtomicBool,
}

impl Deferred {
    /// Returns whether the list may contain deferred calls. Does not lock the list.
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
        write!(f, "{} for address {:#x}", self.call, self.address)
    }
}

impl DeferredCall {
    /// Makes the deferred call. The calling thread must hold the gate, which is the lock for calls
    /// of NVSHMEM. If the call fails, leaks the value in `held`, because NVSHMEM may still use this
    /// value.
    fn make(self, comm: &Comm) {
        if let Err(error) = (self.run)(comm, self.address) {
            tracing::warn!(%error, "NVSHMEM may still use the memory or module at {:#x}, so the resource is leaked", self.address);
            self.held.leak();
        }
    }
}

impl Comm {
    /// Calls NVSHMEM immediately if the gate (the lock for calls of NVSHMEM) is free and the call's
    /// streams are idle. Otherwise adds the call to the list of deferred calls. A thread that holds
    /// the gate later executes the call.
    ///
    /// If NVSHMEM has been finalised, drops the call. If NVSHMEM is unusable for a different
    /// reason, drops the call and leaks the value in `held`. Never waits, and does not change the
    /// thread's current context.
    pub(crate) fn defer(&self, deferred: DeferredCall) {
        let call = deferred.call;
        match self.dead_state() {
            Some(DeadState::Finalized) => return,
            // NVSHMEM may still use the resource, so the resource is leaked.
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

    /// Executes the deferred calls whose streams are idle. The list keeps all other deferred calls.
    /// The calling thread must hold the gate, which is the lock for calls of NVSHMEM.
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
