//! Streams that contain work of a communicator. Unregistering memory waits for these streams, and
//! the watchdog inspects these streams.
//!
//! Invariant: a stream is recorded while the communicator's lock is held, before NCCL is called. A
//! registration is counted before NCCL registers the memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use peerweave_driver::{CudaStream, Streams};

/// The registrations of a communicator: their number, and the streams that may use the registered
/// memory.
#[derive(Default)]
pub(crate) struct RegistrationUse {
    count: AtomicUsize,
    streams: Streams,
}

impl RegistrationUse {
    /// Adds the stream to the recorded streams. Called before a call is enqueued on the stream. If
    /// the previous call used the same stream, this function costs only one load.
    #[inline]
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        self.streams.note(stream);
    }

    /// Adds 1 to the number of registrations. Called before NCCL registers memory.
    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts 1 from the number of registrations. Called after NCCL has unregistered memory, or
    /// has failed to register memory.
    pub(crate) fn remove(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of registrations.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the streams on which calls of the communicator were enqueued.
    pub(crate) fn streams(&self) -> Vec<Arc<CudaStream>> {
        self.streams.all()
    }
}
