//! CUDA events recorded in streams. Tickets and users wait for these events.

use std::sync::Arc;
use std::time::Duration;

use peerweave_driver::cudarc::driver::sys::CUevent;
use peerweave_driver::{CudaCode, CudaContext, CudaError, CudaStream, Driver, DriverError, bind, relaxed};

/// A CUDA event that was recorded in a stream.
#[derive(Debug)]
pub(crate) struct Recorded {
    event: Handle,
    context: Arc<CudaContext>,
}

#[derive(Debug, Clone, Copy)]
struct Handle(CUevent);

// SAFETY: shared: a handle of the driver, which synchronises calls with it from any thread. A
// failure would be caught by the test `tickets_can_be_waited_for_on_another_thread`.
unsafe impl Send for Handle {}
// SAFETY: shared: the same handle, and the driver synchronises calls with it. A failure would be
// caught by the test `tickets_can_be_waited_for_on_another_thread`.
unsafe impl Sync for Handle {}

impl Recorded {
    /// Creates an event, and records it in `stream` after the work that is already enqueued. The
    /// stream must not be in capture. `timed` enables [`elapsed_since`](Self::elapsed_since).
    pub(crate) fn new(stream: &Arc<CudaStream>, timed: bool) -> Result<Self, DriverError> {
        /// The flag `CU_EVENT_DISABLE_TIMING`. An event with this flag records no time, and
        /// therefore has the lowest cost.
        const DISABLE_TIMING: u32 = 2;
        let api = Driver::get()?.api();
        bind(stream.context())?;
        let mut event: CUevent = std::ptr::null_mut();
        let flags = if timed { 0 } else { DISABLE_TIMING };
        // SAFETY: the pointer is to a live handle.
        CudaError::check("cuEventCreate", relaxed(|| unsafe { api.cuEventCreate(&raw mut event, flags) })?)?;
        let recorded = Self { event: Handle(event), context: Arc::clone(stream.context()) };
        recorded.again(stream)?;
        Ok(recorded)
    }

    /// Records the event again, after the work that is already enqueued in `stream`. The context of
    /// the stream must be current. Streams that already wait for the event still wait for its
    /// earlier recording.
    pub(crate) fn again(&self, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
        let api = Driver::get()?.api();
        // SAFETY: the event and the stream are live, and the stream's context is current.
        Ok(CudaError::check("cuEventRecord", unsafe { api.cuEventRecord(self.event.0, stream.cu_stream()) }?)?)
    }

    /// Returns whether the stream has completed all work before the event.
    pub(crate) fn is_complete(&self) -> Result<bool, DriverError> {
        let api = Driver::get()?.api();
        bind(&self.context)?;
        // SAFETY: the event is live.
        match relaxed(|| unsafe { api.cuEventQuery(self.event.0) })? {
            CudaCode::SUCCESS => Ok(true),
            CudaCode::NOT_READY => Ok(false),
            code => Err(CudaError::new("cuEventQuery", code).into()),
        }
    }

    /// Makes a stream wait for the event. The wait runs on the device and does not block the
    /// caller.
    pub(crate) fn hold_back(&self, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
        let api = Driver::get()?.api();
        bind(stream.context())?;
        // SAFETY: the event and the stream are live, and the stream's context is current.
        CudaError::check("cuStreamWaitEvent", unsafe { api.cuStreamWaitEvent(stream.cu_stream(), self.event.0, 0) }?)?;
        Ok(())
    }

    /// Returns the time from the event `earlier` to this event. Returns `None` if one of the events
    /// is not complete, if this event happened before `earlier`, or if the driver fails.
    pub(crate) fn elapsed_since(&self, earlier: &Self) -> Option<Duration> {
        let api = Driver::get().ok()?.api();
        bind(&self.context).ok()?;
        let mut milliseconds = 0.0f32;
        // SAFETY: both events are live and record times, and the pointer is to a live number.
        let code = unsafe { api.cuEventElapsedTime(&raw mut milliseconds, earlier.event.0, self.event.0) };
        let elapsed = (code == Ok(CudaCode::SUCCESS)).then(|| Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3))?;
        elapsed.ok()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let Ok(driver) = Driver::get()
            && bind(&self.context).is_ok()
        {
            // SAFETY: the event has no other user; streams that wait for it continue to wait.
            let _ = relaxed(|| unsafe { driver.api().cuEventDestroy_v2(self.event.0) });
        }
    }
}
