//! Frees device memory without blocking other threads. `reaper.rs` decides when memory may be
//! freed.
//!
//! The driver's `cuMemFree` waits until the whole device is idle. During this wait, no thread of
//! the process can launch a kernel, create an event or allocate on that device (observed on H200).
//! This can cause a deadlock: a collective may be running on the device, and a peer in the
//! collective may wait for the next launch of this process. So this module frees memory by
//! `cuMemFreeAsync` on a separate stream, if the device has memory pools. That stream is idle, so
//! the memory is freed immediately.

use std::cell::RefCell;
use std::sync::Arc;

use crate::cudarc::driver::CudaContext;
use crate::cudarc::driver::sys::{CUdeviceptr, CUstream};
use crate::library::bind;
use crate::streams::reaper::is_over;
use crate::{Api, CudaCode, CudaError, Driver, DriverError, relaxed};

thread_local! {
    /// The streams on which this thread frees memory, one for each context of the driver.
    static STREAMS: RefCell<Vec<Stream>> = const { RefCell::new(Vec::new()) };
}

/// A stream for freeing memory. This value keeps the stream's context alive, and destroys the
/// stream when it is dropped.
struct Stream {
    stream: CUstream,
    context: Arc<CudaContext>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The thread may end after the driver has shut down, when the process exits.
        if let Ok(driver) = Driver::get()
            && !is_over()
        {
            // SAFETY: the stream has no other user, and its context is live.
            let _ = relaxed(|| unsafe { driver.api().cuStreamDestroy_v2(self.stream) });
        }
    }
}

/// Returns whether this thread has streams for freeing memory.
pub(crate) fn has_streams() -> bool {
    STREAMS.try_with(|streams| !streams.borrow().is_empty()).unwrap_or(false)
}

/// Destroys this thread's streams for freeing memory, and releases their contexts.
pub(crate) fn destroy_streams() {
    let streams = STREAMS.try_with(RefCell::take);
    drop(streams);
}

/// Frees memory that `cuMemAlloc` allocated, without waiting for other work on the device.
/// Functions that are passed to [`retire`](crate::retire) can call this function.
///
/// With a driver older than CUDA 11.2, or on a device without memory pools, this call still waits
/// for all work on the device.
///
/// The calling thread creates a stream for freeing, and keeps this stream and the context until the
/// thread ends. The threads that run retired functions release both after one idle second.
///
/// # Errors
/// Errors of the driver. After an error, the memory is leaked.
///
/// # Safety
/// `address` is the address of an allocation of this context. No other code frees the allocation,
/// and all work that uses the allocation is complete.
pub unsafe fn free(context: &Arc<CudaContext>, address: CUdeviceptr) -> Result<(), DriverError> {
    let api = Driver::get()?.api();
    bind(context)?;
    if let Some(stream) = stream(api, context) {
        // SAFETY: the caller guarantees that the memory may be freed. The stream is live, because
        // its context is live.
        let freed = unsafe { api.cuMemFreeAsync(address, stream) };
        if freed == Ok(CudaCode::SUCCESS) {
            // Only this wait makes the memory available again. The stream has no other work.
            // SAFETY: the stream is live.
            let code = unsafe { api.cuStreamSynchronize(stream) }?;
            return Ok(CudaError::check("cuStreamSynchronize", code)?);
        }
    }
    // SAFETY: guaranteed by the caller.
    let code = unsafe { api.cuMemFree_v2(address) }?;
    Ok(CudaError::check("cuMemFree_v2", code)?)
}

/// Returns this thread's stream for freeing memory of the context `context`. This context must be
/// current. Creates the stream if necessary. Returns `None` if the creation fails.
fn stream(api: &Api, context: &Arc<CudaContext>) -> Option<CUstream> {
    /// The flag `CU_STREAM_NON_BLOCKING`: the stream is not ordered with the default stream.
    const NON_BLOCKING: u32 = 1;
    STREAMS
        .try_with(|streams| {
            let mut streams = streams.borrow_mut();
            // Several `CudaContext` values of cudarc may refer to one context.
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
