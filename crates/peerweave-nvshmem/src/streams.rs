//! The streams that use something, to be waited for before it is given up; and waiting for one stream.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use peerweave_driver::{CudaStream, deadline_after, wait};

use crate::context::Inner;
use crate::error::NvshmemError;

/// Waits until the stream has passed all it has, at most for the context's deadline.
pub(crate) fn pass(call: &'static str, inner: &Inner, stream: &Arc<CudaStream>) -> Result<(), NvshmemError> {
    pass_until(call, inner, stream, Instant::now(), deadline_after(inner.deadline))
}

fn pass_until(
    call: &'static str,
    inner: &Inner,
    stream: &Arc<CudaStream>,
    start: Instant,
    deadline: Instant,
) -> Result<(), NvshmemError> {
    if wait(stream, deadline)? { Ok(()) } else { Err(inner.late(call, start.elapsed(), Vec::new())) }
}

/// Streams that work was enqueued on.
#[derive(Default)]
pub(crate) struct Streams(Mutex<Vec<Arc<CudaStream>>>);

impl Streams {
    /// Notes that work is enqueued on a stream.
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.iter().any(|known| Arc::ptr_eq(known, stream)) {
            streams.push(Arc::clone(stream));
        }
    }

    /// Waits until all of them have passed their work, at most for the context's deadline.
    pub(crate) fn settle(&self, call: &'static str, inner: &Inner) -> Result<(), NvshmemError> {
        let streams = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let (start, deadline) = (Instant::now(), deadline_after(inner.deadline));
        for (index, stream) in streams.iter().enumerate() {
            if let Err(error) = pass_until(call, inner, stream, start, deadline) {
                // They are still to be waited for, should it be given up later.
                self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(streams[index..].iter().cloned());
                return Err(error);
            }
        }
        Ok(())
    }
}
