//! The streams that use something, to be waited for before it is given up.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use peerweave_driver::{CudaStream, wait};

use crate::context::Inner;
use crate::error::{NvshmemError, Timeout};

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
        let start = Instant::now();
        for (index, stream) in streams.iter().enumerate() {
            if !wait(stream, start + inner.deadline)? {
                // They are still to be waited for, should it be given up later.
                self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(streams[index..].iter().cloned());
                let pe = Some(inner.pe);
                return Err(Timeout { call, waited: start.elapsed(), pe, missing: Vec::new(), lost: None }.into());
            }
        }
        Ok(())
    }
}
