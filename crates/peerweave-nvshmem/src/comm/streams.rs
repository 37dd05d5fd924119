//! Functions that wait for streams, and the list of the streams that use a resource. A resource is
//! released after these streams have completed.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use peerweave_driver::{CudaStream, DriverError, deadline_after, wait};

use crate::comm::Comm;
use crate::error::NvshmemError;

/// Waits within the context's deadline until `stream` has completed its work.
pub(crate) fn wait_stream(call: &'static str, comm: &Comm, stream: &Arc<CudaStream>) -> Result<(), NvshmemError> {
    pass_until(call, comm, stream, Instant::now(), deadline_after(comm.deadline))
}

fn pass_until(
    call: &'static str,
    comm: &Comm,
    stream: &Arc<CudaStream>,
    start: Instant,
    deadline: Instant,
) -> Result<(), NvshmemError> {
    if wait(stream, deadline)? { Ok(()) } else { Err(comm.late(call, start.elapsed(), Vec::new())) }
}

/// Waits until all streams in `streams` have completed their work. The context's deadline applies
/// to the wait for all of them together.
pub(crate) fn wait_all(call: &'static str, comm: &Comm, streams: &peerweave_driver::Streams) -> Result<(), NvshmemError> {
    let (start, deadline) = (Instant::now(), deadline_after(comm.deadline));
    streams.all().iter().try_for_each(|stream| pass_until(call, comm, stream, start, deadline))
}

/// The list of the streams that use a resource. A stream may be removed from the list if the stream
/// is idle and the list has the only handle to the stream.
pub(crate) struct Streams {
    known: peerweave_driver::Streams,
    /// If the resource is memory: the value that `Open::emptied` (in `pending.rs`) had when the
    /// memory was last added to `Open::memory`, the list of the memory of incomplete transfers. The
    /// memory is still in that list if and only if `Open::emptied` has the same value now. 0 if the
    /// resource was never added.
    pub(crate) pending: AtomicU64,
}

impl Streams {
    /// Creates an empty list of streams. A stream that is added to this list is also added to the
    /// context's list of all streams in use.
    pub(crate) fn new(comm: &Comm) -> Self {
        Self { known: peerweave_driver::Streams::within(&comm.enqueued.used), pending: AtomicU64::new(0) }
    }

    /// Adds `stream` to this list, because the stream uses the resource to which the list belongs.
    #[inline]
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        self.known.note(stream);
    }

    /// Returns whether no stream in the list has pending work. A stream with an error counts as
    /// idle, because its work will never complete. A stream that is being captured does not count
    /// as idle.
    pub(crate) fn are_idle(&self) -> bool {
        let passed = |stream| match wait(stream, Instant::now()) {
            Ok(passed) => passed,
            Err(error) => !matches!(error, DriverError::Capturing { .. }),
        };
        self.known.all().iter().all(passed)
    }

    /// Waits within the context's deadline until all streams in the list have completed their work.
    /// The streams stay in the list.
    pub(crate) fn drain(&self, call: &'static str, comm: &Comm) -> Result<(), NvshmemError> {
        wait_all(call, comm, &self.known)
    }
}
