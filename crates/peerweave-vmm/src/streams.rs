//! Which streams have been handed a piece of memory. Waits for them, or hands them to who frees it.
//!
//! Invariant: a stream is noted before work that uses the memory is enqueued on it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use peerweave_driver::CudaStream;

use crate::VmmError;

/// Streams that some memory was handed to, each once.
#[derive(Debug, Default)]
pub(crate) struct Streams(Mutex<Vec<Arc<CudaStream>>>);

impl Streams {
    /// So many are kept without a look at what they do.
    const MANY: usize = 32;

    /// Notes that work which uses the memory is about to be enqueued on a stream.
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.iter().any(|known| Arc::ptr_eq(known, stream)) {
            // A stream that nobody else has gets no more work; one that is through with it need not be kept.
            if streams.len() >= Self::MANY && streams.len().is_power_of_two() {
                streams.retain(|known| Arc::strong_count(known) > 1 || !is_idle(known));
            }
            streams.push(Arc::clone(stream));
        }
    }

    /// The streams that are noted now.
    pub(crate) fn all(&self) -> Vec<Arc<CudaStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the work that they have now is done. Fails with what the work of one failed with.
    pub(crate) fn wait(&self, call: &str, deadline: Instant) -> Result<(), VmmError> {
        let start = Instant::now();
        for stream in self.all() {
            wait_for(&stream, call, start, deadline)?;
        }
        Ok(())
    }
}

/// Whether a stream has nothing left to do. One that cannot be asked may have.
fn is_idle(stream: &Arc<CudaStream>) -> bool {
    matches!(peerweave_driver::wait(stream, Instant::now()), Ok(true))
}

/// Waits for a stream by a deadline.
pub(crate) fn wait_for(stream: &Arc<CudaStream>, call: &str, start: Instant, deadline: Instant) -> Result<(), VmmError> {
    match peerweave_driver::wait(stream, deadline)? {
        true => Ok(()),
        false => {
            let call = format!("{call}: work of a stream of device {}", stream.context().ordinal());
            Err(VmmError::Timeout { call, waited: start.elapsed(), missing: Vec::new() })
        }
    }
}

/// The moment `within` from now, or as far as the clock goes.
pub(crate) fn deadline(within: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(within).unwrap_or_else(|| now + Duration::from_secs(365 * 86_400))
}
