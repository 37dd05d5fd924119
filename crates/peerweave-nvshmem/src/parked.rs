//! What is to be told to NVSHMEM by a destructor, which may not wait for who is inside, nor for a stream: told at once if nothing is in the way,
//! otherwise by who comes in later.
//!
//! Invariant: what NVSHMEM was not told stays alive for ever, unless NVSHMEM has ended; and no destructor of the user's runs inside NVSHMEM.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use peerweave_driver::{CudaContext, Keep, bind_if_needed, with_context_kept};

use crate::context::Inner;
use crate::error::{DeadState, NvshmemError};
use crate::streams::Streams;

/// Somebody's value that NVSHMEM, or this crate for it, needs. When the last handle goes, the value is dropped by a thread of the driver's crate: its destructor
/// may panic, wait, or call NVSHMEM, wherever the handle was dropped.
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

    /// It stays for ever.
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

/// Something local that NVSHMEM is told of: it waits for nobody. It has what must live until then.
pub(crate) struct Farewell {
    pub(crate) call: &'static str,
    pub(crate) tell: fn(&Inner, usize) -> Result<(), NvshmemError>,
    pub(crate) address: usize,
    /// Streams that have to pass before.
    pub(crate) streams: Option<Arc<Streams>>,
    pub(crate) held: Held,
}

impl fmt::Debug for Farewell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {:#x}", self.call, self.address)
    }
}

impl Farewell {
    /// Tells it, by a thread that is inside. What cannot be told keeps what it has.
    fn say(self, inner: &Inner) {
        if let Err(error) = (self.tell)(inner, self.address) {
            tracing::warn!(%error, "NVSHMEM keeps {:#x}, so it is leaked", self.address);
            self.held.leak();
        }
    }
}

impl Inner {
    /// Tells it now or later; never waits, and leaves the thread's current context as it is.
    pub(crate) fn part(&self, farewell: Farewell) {
        let call = farewell.call;
        match self.dead_state() {
            Some(DeadState::Finalized) => return,
            // It may still be used by what NVSHMEM left behind.
            Some(_) => return farewell.held.leak(),
            None if self.nvshmem.not_forked(farewell.call).is_err() => return farewell.held.leak(),
            None => {}
        }
        self.parked.lock().unwrap_or_else(PoisonError::into_inner).push(farewell);
        self.any_parked.store(true, Ordering::Relaxed);
        if let Some(_inside) = self.gate.try_enter(call)
            && self.dead_state().is_none()
        {
            with_context_kept(|| self.say_parked());
        }
    }

    /// Tells everything that waits for somebody to come in, by a thread that has.
    #[cold]
    pub(crate) fn say_parked(&self) {
        self.any_parked.store(false, Ordering::Relaxed);
        let parked = std::mem::take(&mut *self.parked.lock().unwrap_or_else(PoisonError::into_inner));
        if parked.is_empty() {
            return;
        }
        if let Err(error) = bind_if_needed(&self.context) {
            tracing::warn!(%error, "the device's context cannot be made current");
        }
        let (ready, early): (Vec<_>, Vec<_>) =
            parked.into_iter().partition(|farewell| farewell.streams.as_ref().is_none_or(|streams| streams.are_idle()));
        if !early.is_empty() {
            self.parked.lock().unwrap_or_else(PoisonError::into_inner).extend(early);
            self.any_parked.store(true, Ordering::Relaxed);
        }
        ready.into_iter().for_each(|farewell| farewell.say(self));
    }
}
