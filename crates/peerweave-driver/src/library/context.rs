//! Contexts of devices: the primary one, and the thread's current one.

use std::sync::Arc;

use super::{Api, CudaCode, CudaError, Driver, DriverError};
use crate::cudarc::driver::CudaContext;
use crate::cudarc::driver::sys::CUcontext;

/// Returns cudarc's primary context of a device. Never panics.
///
/// # Errors
/// [`DriverError::NoSuchDevice`], and those of [`Driver::get`].
pub fn context(ordinal: usize) -> Result<Arc<CudaContext>, DriverError> {
    let count = Driver::get()?.device_count()?;
    if ordinal >= count {
        return Err(DriverError::NoSuchDevice { call: "context", ordinal, count });
    }
    Ok(CudaContext::new(ordinal).map_err(CudaError::of("cuDevicePrimaryCtxRetain"))?)
}

/// Returns the context of this process's device, given the index of the process on its machine
/// (`LOCAL_RANK` of launchers, `Job::local_pe` of `peerweave-bootstrap`). The device has the same
/// ordinal. If the launcher shows each process only its own device (`CUDA_VISIBLE_DEVICES`), it is
/// that device.
///
/// Do not pass the index among all processes of a job: on the second machine it is not an ordinal.
///
/// # Errors
/// [`DriverError::NoSuchDevice`] if this process sees several devices, but none with this ordinal;
/// those of [`Driver::get`].
pub fn local_context(local_index: usize) -> Result<Arc<CudaContext>, DriverError> {
    let count = Driver::get()?.device_count()?;
    context(if count == 1 { 0 } else { local_index })
}

/// Makes a context current in this thread. cudarc's `bind_to_thread` is not used: it returns and
/// clears an error that another object's destructor recorded in the context.
///
/// # Errors
/// Errors of the driver.
#[inline]
pub fn bind(context: &CudaContext) -> Result<(), DriverError> {
    // SAFETY: the context is live as long as cudarc's object.
    let code = unsafe { Driver::get()?.api().cuCtxSetCurrent(context.cu_ctx()) }?;
    Ok(CudaError::check("cuCtxSetCurrent", code)?)
}

/// Like [`bind`], but only queries the driver if the context is already current.
///
/// # Errors
/// As for [`bind`].
#[inline]
pub fn bind_if_needed(context: &CudaContext) -> Result<(), DriverError> {
    if is_current(context) { Ok(()) } else { bind(context) }
}

/// Returns whether a context is current in this thread.
#[inline]
pub(crate) fn is_current(context: &CudaContext) -> bool {
    let mut current: CUcontext = std::ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    let code = Driver::get().map(|driver| unsafe { driver.api().cuCtxGetCurrent(&raw mut current) });
    matches!(code, Ok(Ok(CudaCode::SUCCESS))) && current == context.cu_ctx()
}

/// Runs a function that may make another context current. Restores the previous context, also after
/// a panic.
///
/// For destructors, because a value can be dropped in any code, which relies on its own current
/// context. Costs two calls of the driver.
pub fn with_context_kept<R>(run: impl FnOnce() -> R) -> R {
    struct Before(&'static Api, CUcontext);
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: it was the thread's current context, or none; the code that made it current
            // keeps it live.
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
