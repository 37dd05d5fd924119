//! The streams that use something, to be waited for before it is given up; and waiting for one
//! stream.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use peerweave_driver::{CudaStream, DriverError, deadline_after, wait};

use crate::comm::Comm;
use crate::error::NvshmemError;

/// Waits until the stream has passed all it has, at most for the context's deadline.
pub(crate) fn pass(call: &'static str, comm: &Comm, stream: &Arc<CudaStream>) -> Result<(), NvshmemError> {
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

/// Waits until all these streams have passed what they have, at most for the context's deadline for
/// all of them together.
pub(crate) fn pass_all(call: &'static str, comm: &Comm, streams: &peerweave_driver::Streams) -> Result<(), NvshmemError> {
    let (start, deadline) = (Instant::now(), deadline_after(comm.deadline));
    streams.all().iter().try_for_each(|stream| pass_until(call, comm, stream, start, deadline))
}

/// Streams that work was enqueued on. One that is done, and that nobody else has, may be let go.
pub(crate) struct Streams {
    known: peerweave_driver::Streams,
    /// When this was last put into the list of what was left to NVSHMEM's own streams: see
    /// `pending.rs`.
    pub(crate) pending: AtomicU64,
}

impl Streams {
    /// None yet. What is noted here is noted among all streams of the context too.
    pub(crate) fn new(comm: &Comm) -> Self {
        Self { known: peerweave_driver::Streams::within(&comm.enqueued.used), pending: AtomicU64::new(0) }
    }

    /// Notes that work is enqueued on a stream.
    #[inline]
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        self.known.note(stream);
    }

    /// Whether all of them have passed their work, or never will.
    pub(crate) fn are_idle(&self) -> bool {
        let passed = |stream| match wait(stream, Instant::now()) {
            Ok(passed) => passed,
            Err(error) => !matches!(error, DriverError::Capturing { .. }),
        };
        self.known.all().iter().all(passed)
    }

    /// Waits until all of them have passed their work, at most for the context's deadline. They
    /// stay noted.
    pub(crate) fn drain(&self, call: &'static str, comm: &Comm) -> Result<(), NvshmemError> {
        pass_all(call, comm, &self.known)
    }
}
