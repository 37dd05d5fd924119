//! Waits for the streams that use memory.
//!
//! `peerweave_driver::Streams` records the streams. Invariant: a stream is recorded before work
//! that uses the memory is enqueued on the stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_driver::{CudaStream, DriverError, Streams};

use crate::VmmError;

/// Waits until all work that is enqueued on `streams` at the time of the call is complete.
///
/// # Errors
/// The errors of [`Streams::wait_for_all`], and [`VmmError::Timeout`] if a stream is not complete
/// by the deadline.
pub(crate) fn wait_for_all(streams: &Streams, call: &'static str, deadline: Instant) -> Result<(), VmmError> {
    let start = Instant::now();
    streams.wait_for_all(call, deadline)?.map_or(Ok(()), |stream| Err(busy(call, &stream, start.elapsed())))
}

/// Waits until the work of `stream` is complete. Returns [`VmmError::Timeout`] if the work is not
/// complete by the deadline. `start` is the time at which the caller began to wait.
pub(crate) fn wait_for(stream: &Arc<CudaStream>, call: &str, start: Instant, deadline: Instant) -> Result<(), VmmError> {
    match peerweave_driver::wait(stream, deadline)? {
        true => Ok(()),
        false => Err(busy(call, stream, start.elapsed())),
    }
}

/// Returns a function that converts the error of a wait for `stream`. A timeout becomes
/// [`VmmError::Timeout`], which names the device of `stream`. Any other error becomes
/// [`VmmError::Driver`].
pub(crate) fn timed_out(stream: &CudaStream) -> impl FnOnce(DriverError) -> VmmError {
    move |error| match error {
        DriverError::Timeout { call, waited } => busy(call, stream, waited),
        error => error.into(),
    }
}

fn busy(call: &str, stream: &CudaStream, waited: Duration) -> VmmError {
    let call = format!("{call}: waiting for a stream of device {}", stream.context().ordinal());
    VmmError::Timeout { call, waited, missing: Vec::new() }
}
