//! What is to be told to NVSHMEM by a destructor, which may not wait for who is inside, nor for a stream: told at once if nothing is in the way,
//! otherwise by who comes in later.
//!
//! Invariant: what NVSHMEM was not told stays alive for ever, unless NVSHMEM has ended.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use peerweave_driver::Keep;

use crate::context::{Inner, bind};
use crate::error::{DeadState, NvshmemError};
use crate::streams::Streams;

/// Something local that NVSHMEM is told of: it waits for nobody. It has what must live until then.
pub(crate) struct Farewell {
    pub(crate) call: &'static str,
    pub(crate) tell: fn(&Inner, usize) -> Result<(), NvshmemError>,
    pub(crate) address: usize,
    /// Streams that have to pass before.
    pub(crate) streams: Option<Arc<Streams>>,
    pub(crate) keep: Keep,
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
            std::mem::forget(self.keep);
        }
    }
}

impl Inner {
    /// Tells it now or later; never waits.
    pub(crate) fn part(&self, farewell: Farewell) {
        let call = farewell.call;
        match self.dead_state() {
            Some(DeadState::Finalized) => return,
            // It may still be used by what NVSHMEM left behind.
            Some(_) => return std::mem::forget(farewell.keep),
            None if self.nvshmem.not_forked(farewell.call).is_err() => return std::mem::forget(farewell.keep),
            None => {}
        }
        self.parked.lock().unwrap_or_else(PoisonError::into_inner).push(farewell);
        self.any_parked.store(true, Ordering::Relaxed);
        if let Some(_inside) = self.gate.try_enter(call)
            && self.dead_state().is_none()
        {
            self.say_parked();
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
        if let Err(error) = bind(&self.context) {
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

    /// Waits for the streams that something parked waits for, at most for the context's deadline.
    pub(crate) fn settle_parked(&self, call: &'static str) -> Result<(), NvshmemError> {
        let streams: Vec<_> = {
            let parked = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
            parked.iter().filter_map(|farewell| farewell.streams.clone()).collect()
        };
        streams.iter().try_for_each(|streams| streams.settle(call, self))
    }
}
