//! Which streams got work of a communicator: what deregistering memory waits for, and what the
//! watchdog looks at.
//!
//! Invariant: a stream is noted inside the communicator's gate, before the call is given to NCCL;
//! registering counts before NCCL registers.

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
    /// Notes that a call is about to be enqueued. One load where the stream is that of the call
    /// before.
    #[inline]
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        self.streams.note(stream);
    }

    /// Counts a registration, before NCCL makes it.
    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a registration back that NCCL did not make, or has forgotten.
    pub(crate) fn remove(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many registrations NCCL has.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The streams that got work.
    pub(crate) fn streams(&self) -> Vec<Arc<CudaStream>> {
        self.streams.all()
    }
}
