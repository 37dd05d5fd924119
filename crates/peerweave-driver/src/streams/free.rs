//! Freeing device memory without making anybody wait.
//!
//! When it may be freed is `reaper.rs`.
//!
//! The driver's `cuMemFree` waits until the whole device is idle, and while it waits no thread of
//! the process can launch a kernel, make an event or allocate on that device (seen on H200). With a
//! collective in flight whose peer waits for what this process would launch next, that is forever.
//! Freed in the order of a stream, the same memory goes at once; a stream of our own has nothing
//! else in it.

use std::cell::RefCell;
use std::sync::Arc;

use crate::cudarc::driver::CudaContext;
use crate::cudarc::driver::sys::{CUdeviceptr, CUstream};
use crate::library::bind;
use crate::streams::reaper::is_over;
use crate::{Api, CudaCode, CudaError, Driver, DriverError, relaxed};

thread_local! {
    /// This thread's streams for freeing, one for each of the driver's contexts.
    static STREAMS: RefCell<Vec<Stream>> = const { RefCell::new(Vec::new()) };
}

/// A stream for freeing. It is destroyed in its context, which it keeps.
struct Stream {
    stream: CUstream,
    context: Arc<CudaContext>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The thread may end with the process, and the driver before it.
        if let Ok(driver) = Driver::get()
            && !is_over()
        {
            // SAFETY: nobody else has the stream, and its context is live.
            let _ = relaxed(|| unsafe { driver.api().cuStreamDestroy_v2(self.stream) });
        }
    }
}

/// Whether this thread has streams for freeing.
pub(crate) fn has_streams() -> bool {
    STREAMS.try_with(|streams| !streams.borrow().is_empty()).unwrap_or(false)
}

/// Lets go of this thread's streams for freeing and of their contexts.
pub(crate) fn destroy_streams() {
    let streams = STREAMS.try_with(RefCell::take);
    drop(streams);
}

/// Gives memory of `cuMemAlloc` back to the driver, without waiting for what else the device does.
/// Meant for [`retire`](crate::retire).
///
/// A driver before CUDA 11.2, and a device without memory pools, do wait for the whole device. The
/// thread keeps a stream to free on, and with it the context, until it ends; one of this crate only
/// for a second.
///
/// # Errors
/// What the driver says; then the memory is leaked.
///
/// # Safety
/// The address is that of an allocation of this context, nobody else frees it, and all work that
/// uses it has been done.
pub unsafe fn free(context: &Arc<CudaContext>, address: CUdeviceptr) -> Result<(), DriverError> {
    let api = Driver::get()?.api();
    bind(context)?;
    if let Some(stream) = stream(api, context) {
        // SAFETY: the memory by the caller's promise; the stream is live, since its context is.
        let freed = unsafe { api.cuMemFreeAsync(address, stream) };
        if freed == Ok(CudaCode::SUCCESS) {
            // Only with this is the memory there for others. The stream has nothing in it but what
            // was freed. SAFETY: the stream is live.
            let code = unsafe { api.cuStreamSynchronize(stream) }?;
            return Ok(CudaError::check("cuStreamSynchronize", code)?);
        }
    }
    // SAFETY: the caller's promise.
    let code = unsafe { api.cuMemFree_v2(address) }?;
    Ok(CudaError::check("cuMemFree_v2", code)?)
}

/// The thread's stream for freeing in that context, which is current.
fn stream(api: &Api, context: &Arc<CudaContext>) -> Option<CUstream> {
    /// `CU_STREAM_NON_BLOCKING`: in no order with the default stream.
    const NON_BLOCKING: u32 = 1;
    STREAMS
        .try_with(|streams| {
            let mut streams = streams.borrow_mut();
            // Several values of cudarc's may stand for one context.
            if let Some(known) = streams.iter().find(|known| known.context.cu_ctx() == context.cu_ctx()) {
                return Some(known.stream);
            }
            let mut stream: CUstream = std::ptr::null_mut();
            // SAFETY: the pointer is to a live handle.
            let code = unsafe { api.cuStreamCreate(&raw mut stream, NON_BLOCKING) };
            if code != Ok(CudaCode::SUCCESS) {
                return None;
            }
            streams.push(Stream { stream, context: Arc::clone(context) });
            Some(stream)
        })
        .ok()
        .flatten()
}
