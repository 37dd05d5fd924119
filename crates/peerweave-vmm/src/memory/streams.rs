//! Waits for the streams that use memory.
//!
//! `peerweave_driver` has the list of streams. Invariant: a stream is recorded before work that
//! uses the memory is enqueued on it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_driver::{CudaStream, DriverError, Streams, refuse_per_thread, wait_past_capture};

use crate::VmmError;

/// Waits until the present work of the streams is complete. Returns the error of failed work. Also
/// returns an error for a per-thread stream, because its work on other threads is unknown. A stream
/// that is being captured is not complete.
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

/// Waits for a stream until a deadline.
pub(crate) fn wait_for(stream: &Arc<CudaStream>, call: &str, start: Instant, deadline: Instant) -> Result<(), VmmError> {
    match peerweave_driver::wait(stream, deadline)? {
        true => Ok(()),
        false => Err(busy(call, stream, start.elapsed())),
    }
}

/// Returns the error that names the stream of a wait in `peerweave-driver`.
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
