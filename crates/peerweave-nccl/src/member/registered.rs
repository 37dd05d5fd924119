//! Streams that have work of a communicator. Unregistering memory waits for them, and the watchdog
//! inspects them.
//!
//! Invariant: a stream is recorded inside the communicator's gate, before NCCL is called; a
//! registration is counted before NCCL makes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use peerweave_driver::{CudaStream, Streams};

/// The registrations of a communicator, and the streams that may use them.
#[derive(Default)]
pub(crate) struct RegistrationUse {
    count: AtomicUsize,
    streams: Streams,
}

impl RegistrationUse {
    /// Records that a call is about to be enqueued. Costs one load if the stream is that of the
    /// previous call.
    #[inline]
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        self.streams.note(stream);
    }

    /// Counts a registration before NCCL makes it.
    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts from the count a registration that NCCL did not make, or has removed.
    pub(crate) fn remove(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of registrations in NCCL.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the streams with work.
    pub(crate) fn streams(&self) -> Vec<Arc<CudaStream>> {
        self.streams.all()
    }
}
