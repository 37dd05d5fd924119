//! Contexts of devices: the primary context of a device, and the current context of a thread.

use std::sync::Arc;

use super::{Api, CudaCode, CudaError, Driver, DriverError};
use crate::cudarc::driver::CudaContext;
use crate::cudarc::driver::sys::CUcontext;

/// Returns the primary context of the device with ordinal `ordinal`. Never panics.
///
/// # Errors
/// [`DriverError::NoSuchDevice`] if `ordinal` is too large, or an error of [`Driver::get`].
pub fn context(ordinal: usize) -> Result<Arc<CudaContext>, DriverError> {
    let count = Driver::get()?.device_count()?;
    if ordinal >= count {
        return Err(DriverError::NoSuchDevice { call: "context", ordinal, count });
    }
    Ok(CudaContext::new(ordinal).map_err(CudaError::of("cuDevicePrimaryCtxRetain"))?)
}

/// Returns the primary context of the device that this process uses. `local_index` is the index of
/// the process on its machine, such as `LOCAL_RANK` or `Job::local_pe` of `peerweave-bootstrap`.
/// This index is also the ordinal of the device. If the process sees only one device, for example
/// because of `CUDA_VISIBLE_DEVICES`, returns the context of that device.
///
/// Do not pass the index of the process among all processes of the job. On the second machine, an
/// index among all processes is not an ordinal.
///
/// # Errors
/// [`DriverError::NoSuchDevice`] if this process sees no device, or if it sees several devices, but
/// no device with the ordinal `local_index`. Otherwise, an error of [`Driver::get`].
pub fn local_context(local_index: usize) -> Result<Arc<CudaContext>, DriverError> {
    let count = Driver::get()?.device_count()?;
    context(if count == 1 { 0 } else { local_index })
}

/// Makes a context current in this thread. cudarc's `bind_to_thread` is not used, because it
/// returns and clears an error that the destructor of another object recorded in the context.
///
/// # Errors
/// An error of the driver.
#[inline]
pub fn bind(context: &CudaContext) -> Result<(), DriverError> {
    // SAFETY: the context is live while cudarc's object lives.
    let code = unsafe { Driver::get()?.api().cuCtxSetCurrent(context.cu_ctx()) }?;
    Ok(CudaError::check("cuCtxSetCurrent", code)?)
}

/// Makes a context current in this thread, unless the context is already current. Queries the
/// driver for the current context first.
///
/// # Errors
/// As for [`bind`].
#[inline]
pub fn bind_if_needed(context: &CudaContext) -> Result<(), DriverError> {
    if is_current(context) { Ok(()) } else { bind(context) }
}

/// Returns whether `context` is the current context of this thread.
#[inline]
pub(crate) fn is_current(context: &CudaContext) -> bool {
    let mut current: CUcontext = std::ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    let code = Driver::get().map(|driver| unsafe { driver.api().cuCtxGetCurrent(&raw mut current) });
    matches!(code, Ok(Ok(CudaCode::SUCCESS))) && current == context.cu_ctx()
}

/// Calls `run`, which may make another context current. Then makes the previous context current
/// again, even if `run` panics.
///
/// Destructors use this function, so that dropping a value does not change the current context of
/// the code that drops it. Costs two driver calls.
pub fn with_context_kept<R>(run: impl FnOnce() -> R) -> R {
    struct Before(&'static Api, CUcontext);
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: the handle was the thread's current context, or null. The code that made the
            // context current keeps it live.
            let _ = unsafe { self.0.cuCtxSetCurrent(self.1) };
        }
    }
    let mut context: CUcontext = std::ptr::null_mut();
    let before = Driver::get().ok().and_then(|driver| {
        // SAFETY: the pointer is to a live handle.
        let code = unsafe { driver.api().cuCtxGetCurrent(&raw mut context) };
        (code == Ok(CudaCode::SUCCESS)).then(|| Before(driver.api(), context))
    });
    let done = run();
    drop(before);
    done
}
