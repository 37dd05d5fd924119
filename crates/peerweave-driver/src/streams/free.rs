//! Frees device memory without blocking other threads.
//!
//! `reaper.rs` decides when memory may be freed.
//!
//! The driver's `cuMemFree` waits until the whole device is idle. Meanwhile no thread of the
//! process can launch a kernel, create an event or allocate on that device (observed on H200). If a
//! collective is running on the device and its peer waits for this process's next launch, the
//! processes deadlock. Memory that is freed in the order of a separate, idle stream is released at
//! once.

use std::cell::RefCell;
use std::sync::Arc;

use crate::cudarc::driver::CudaContext;
use crate::cudarc::driver::sys::{CUdeviceptr, CUstream};
use crate::library::bind;
use crate::streams::reaper::is_over;
use crate::{Api, CudaCode, CudaError, Driver, DriverError, relaxed};

thread_local! {
    /// The streams for freeing of this thread, one for each context of the driver.
    static STREAMS: RefCell<Vec<Stream>> = const { RefCell::new(Vec::new()) };
}

/// A stream for freeing. It keeps its context alive, and is destroyed in it.
struct Stream {
    stream: CUstream,
    context: Arc<CudaContext>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The thread may end with the process, after the driver.
        if let Ok(driver) = Driver::get()
            && !is_over()
        {
            // SAFETY: the stream has no other user, and its context is live.
            let _ = relaxed(|| unsafe { driver.api().cuStreamDestroy_v2(self.stream) });
        }
    }
}

/// Returns whether this thread has streams for freeing.
pub(crate) fn has_streams() -> bool {
    STREAMS.try_with(|streams| !streams.borrow().is_empty()).unwrap_or(false)
}

/// Drops this thread's streams for freeing and their contexts.
pub(crate) fn destroy_streams() {
    let streams = STREAMS.try_with(RefCell::take);
    drop(streams);
}

/// Frees memory of `cuMemAlloc` without waiting for other work of the device. Meant for
/// [`retire`](crate::retire).
///
/// A driver older than CUDA 11.2, or a device without memory pools, still waits for the whole
/// device. The thread keeps a stream for freeing, and with it the context, until the thread ends; a
/// thread of this crate keeps it for a second only.
///
/// # Errors
/// Errors of the driver: the memory is then leaked.
///
/// # Safety
/// `address` is the address of an allocation of this context. No other code frees it, and all work
/// that uses it is complete.
pub unsafe fn free(context: &Arc<CudaContext>, address: CUdeviceptr) -> Result<(), DriverError> {
    let api = Driver::get()?.api();
    bind(context)?;
    if let Some(stream) = stream(api, context) {
        // SAFETY: the caller promises the memory; the stream is live because its context is.
        let freed = unsafe { api.cuMemFreeAsync(address, stream) };
        if freed == Ok(CudaCode::SUCCESS) {
            // Only this makes the memory available again. The stream has no other work. SAFETY: the
            // stream is live.
            let code = unsafe { api.cuStreamSynchronize(stream) }?;
            return Ok(CudaError::check("cuStreamSynchronize", code)?);
        }
    }
    // SAFETY: guaranteed by the caller.
    let code = unsafe { api.cuMemFree_v2(address) }?;
    Ok(CudaError::check("cuMemFree_v2", code)?)
}

/// Returns the thread's stream for freeing in the context, which must be current.
fn stream(api: &Api, context: &Arc<CudaContext>) -> Option<CUstream> {
    /// `CU_STREAM_NON_BLOCKING`: not ordered with the default stream.
    const NON_BLOCKING: u32 = 1;
    STREAMS
        .try_with(|streams| {
            let mut streams = streams.borrow_mut();
            // Several values of cudarc may be of one context.
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
