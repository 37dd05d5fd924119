//! Waits for the streams that use memory.
//!
//! `peerweave_driver::Streams` records the streams. Invariant: a stream is recorded before work
//! that uses the memory is enqueued on the stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_driver::{CudaStream, DriverError, Streams, refuse_per_thread, wait_past_capture};

use crate::VmmError;

/// Waits until all work that is now enqueued on the streams is complete.
///
/// # Errors
/// The error of work that failed on a stream. An error for a per-thread stream, because its work on
/// other threads is unknown. [`VmmError::Timeout`] if a stream is not complete by the deadline. A
/// stream that is being captured is not complete.
pub(crate) fn wait_for_all(streams: &Streams, call: &'static str, deadline: Instant) -> Result<(), VmmError> {
    let start = Instant::now();
    for stream in streams.all() {
        refuse_per_thread(call, &stream)?;
        if !wait_past_capture(&stream, deadline)? {
            return Err(busy(call, &stream, start.elapsed()));
        }
    }
    Ok(())
}

/// Waits until the work of `stream` is complete. Returns [`VmmError::Timeout`] if the work is not
/// complete by the deadline. `start` is the time at which the caller began to wait.
pub(crate) fn wait_for(stream: &Arc<CudaStream>, call: &str, start: Instant, deadline: Instant) -> Result<(), VmmError> {
    match peerweave_driver::wait(stream, deadline)? {
        true => Ok(()),
        false => Err(busy(call, stream, start.elapsed())),
    }
}

/// Converts errors of `peerweave-driver`: a timeout becomes an error that names the device of
/// `stream`.
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
