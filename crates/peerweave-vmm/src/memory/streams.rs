//! Waiting for the streams that a piece of memory was handed to.
//!
//! The list of them is `peerweave_driver`'s. Invariant: a stream is noted before work that uses the
//! memory is enqueued on it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_driver::{CudaStream, DriverError, Streams, refuse_per_thread, wait_past_capture};

use crate::VmmError;

/// Waits until the work that the streams have now is done. Fails with what the work of one failed
/// with, and where a stream is that of each thread: what another thread gave it to do cannot be
/// known. One that is being captured, for something else, is not done yet.
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

/// Waits for a stream by a deadline.
pub(crate) fn wait_for(stream: &Arc<CudaStream>, call: &str, start: Instant, deadline: Instant) -> Result<(), VmmError> {
    match peerweave_driver::wait(stream, deadline)? {
        true => Ok(()),
        false => Err(busy(call, stream, start.elapsed())),
    }
}

/// Says which stream did not pass in time, where the driver's crate waited.
pub(crate) fn timed_out(stream: &CudaStream) -> impl FnOnce(DriverError) -> VmmError {
    move |error| match error {
        DriverError::Timeout { call, waited } => busy(call, stream, waited),
        error => error.into(),
    }
}

fn busy(call: &str, stream: &CudaStream, waited: Duration) -> VmmError {
    let call = format!("{call}: work of a stream of device {}", stream.context().ordinal());
    VmmError::Timeout { call, waited, missing: Vec::new() }
}
