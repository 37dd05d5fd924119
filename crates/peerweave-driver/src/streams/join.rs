//! One stream that waits for another, on the device.
//!
//! Says nothing of streams that are being captured: a caller asks
//! [`is_capturing`](crate::is_capturing) first.

use crate::cudarc::driver::CudaStream;
use crate::cudarc::driver::sys::CUevent;
use crate::library::bind;
use crate::{CudaError, Driver, DriverError};

/// Makes `waiter` wait, on the device, for all that `other` has to do now. The calling thread does
/// not wait. Makes the context of `waiter` the thread's current one.
///
/// Unlike cudarc's function of this name, it works where a destructor left an error in the context.
///
/// # Errors
/// What the driver says. A stream that is being captured cannot wait for one that is not.
pub fn join(waiter: &CudaStream, other: &CudaStream) -> Result<(), DriverError> {
    /// `CU_EVENT_DISABLE_TIMING`: the cheapest event there is.
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
        // SAFETY: the same of the other stream.
        CudaError::check("cuStreamWaitEvent", unsafe { api.cuStreamWaitEvent(waiter.cu_stream(), event, 0) }?)?;
        Ok(())
    };
    let joined = join();
    // SAFETY: nobody else has the event; a stream that waits for it goes on waiting.
    let _ = unsafe { api.cuEventDestroy_v2(event) };
    joined
}
