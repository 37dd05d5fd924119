//! Makes one stream wait for another stream on the device.
//!
//! The caller first checks whether the streams are being captured (see
//! [`is_capturing`](crate::is_capturing)). [`join`] works if neither stream is being captured, or
//! if both are being captured into the same graph.

use crate::cudarc::driver::CudaStream;
use crate::cudarc::driver::sys::CUevent;
use crate::library::bind;
use crate::{CudaError, Driver, DriverError};

/// Makes the stream `waiter` wait for the work that is now pending on the stream `other`. Only the
/// device waits, not the calling thread. Makes the context of `waiter` current.
///
/// Unlike cudarc's function `join`, this function works if a destructor has recorded an error in
/// the context.
///
/// # Errors
/// An error of the driver. For example, a stream that is being captured cannot wait for a stream
/// that is not being captured.
pub fn join(waiter: &CudaStream, other: &CudaStream) -> Result<(), DriverError> {
    /// The flag `CU_EVENT_DISABLE_TIMING`: events without timing are the fastest.
    const DISABLE_TIMING: u32 = 2;
    let api = Driver::get()?.api();
    bind(other.context())?;
    let mut event: CUevent = std::ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    CudaError::check("cuEventCreate", unsafe { api.cuEventCreate(&raw mut event, DISABLE_TIMING) }?)?;
    let join = || {
        // SAFETY: the event and the stream are live, and the stream's context is current.
        CudaError::check("cuEventRecord", unsafe { api.cuEventRecord(event, other.cu_stream()) }?)?;
        bind(waiter.context())?;
        // SAFETY: as above, for `waiter`.
        CudaError::check("cuStreamWaitEvent", unsafe { api.cuStreamWaitEvent(waiter.cu_stream(), event, 0) }?)?;
        Ok(())
    };
    let joined = join();
    // SAFETY: the event has no other user. A stream that waits for the event continues to wait
    // after the event is destroyed.
    let _ = unsafe { api.cuEventDestroy_v2(event) };
    joined
}
