//! cudarc's events are not used: they return errors that other code recorded in the context.
//!
//! cudarc's events return an error that other code recorded in the context instead of working, so
//! they are not used.

use std::sync::Arc;

use peerweave_driver::cudarc::driver::sys::CUevent;
use peerweave_driver::{CudaContext, CudaStream};

use crate::error::VmmError;
use crate::raw;

/// A timestamp in a stream.
pub(super) struct Mark {
    event: CUevent,
}

impl Mark {
    /// Creates a timestamp that is not recorded yet.
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, VmmError> {
        /// `CU_EVENT_DEFAULT`: with timing.
        const WITH_TIME: u32 = 0;
        raw::bind(context)?;
        let mut event: CUevent = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        raw::done("cuEventCreate", unsafe { raw::api()?.cuEventCreate(&raw mut event, WITH_TIME) })?;
        Ok(Self { event })
    }

    /// Records the timestamp at the present end of a stream of its context.
    pub(super) fn record(&self, stream: &Arc<CudaStream>) -> Result<(), VmmError> {
        raw::bind(stream.context())?;
        // SAFETY: both are live.
        raw::done("cuEventRecord", unsafe { raw::api()?.cuEventRecord(self.event, stream.cu_stream()) })
    }

    /// Returns the seconds from this timestamp to a later one. The streams must have completed
    /// both.
    pub(super) fn seconds_to(&self, later: &Self) -> Result<f64, VmmError> {
        let mut milliseconds = 0.0;
        // SAFETY: the pointer is to a live number, and both events are live.
        let code = unsafe { raw::extra()?.cuEventElapsedTime(&raw mut milliseconds, self.event, later.event) };
        raw::done("cuEventElapsedTime", code)?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: the event has no other user; a stream that has not reached it yet still may.
        let code = raw::api().map(|api| unsafe { api.cuEventDestroy_v2(self.event) });
        if let Err(error) = code.and_then(|code| raw::done("cuEventDestroy_v2", code)) {
            tracing::debug!(%error, "an event was not destroyed");
        }
    }
}
