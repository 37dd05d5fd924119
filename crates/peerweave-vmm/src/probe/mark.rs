//! Points in a stream whose distance in time can be asked.
//!
//! Not cudarc's events: those give, instead of doing anything, an error that others have left in
//! the context.

use std::sync::Arc;

use peerweave_driver::cudarc::driver::sys::CUevent;
use peerweave_driver::{CudaContext, CudaStream};

use crate::error::VmmError;
use crate::raw;

/// A point in a stream.
pub(super) struct Mark {
    event: CUevent,
}

impl Mark {
    /// Makes a point that is in no stream yet.
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, VmmError> {
        /// `CU_EVENT_DEFAULT`: with the time.
        const WITH_TIME: u32 = 0;
        raw::bind(context)?;
        let mut event: CUevent = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        raw::done("cuEventCreate", unsafe { raw::api()?.cuEventCreate(&raw mut event, WITH_TIME) })?;
        Ok(Self { event })
    }

    /// Puts it at the present end of a stream of its context.
    pub(super) fn record(&self, stream: &Arc<CudaStream>) -> Result<(), VmmError> {
        raw::bind(stream.context())?;
        // SAFETY: both are live.
        raw::done("cuEventRecord", unsafe { raw::api()?.cuEventRecord(self.event, stream.cu_stream()) })
    }

    /// Seconds from here to a later point. The streams have passed both.
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
        // SAFETY: nobody else has the event; a stream that has not passed it yet still may.
        let code = raw::api().map(|api| unsafe { api.cuEventDestroy_v2(self.event) });
        if let Err(error) = code.and_then(|code| raw::done("cuEventDestroy_v2", code)) {
            tracing::debug!(%error, "an event was not destroyed");
        }
    }
}
