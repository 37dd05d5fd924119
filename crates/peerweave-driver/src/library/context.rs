//! Contexts of devices: the primary one, and which one is a thread's current.

use std::sync::Arc;

use super::{Api, CudaCode, CudaError, Driver, DriverError};
use crate::cudarc::driver::CudaContext;
use crate::cudarc::driver::sys::CUcontext;

/// The primary context of a device, by cudarc, or why there is none; never a panic.
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

/// The context of this process's own device, by its index among the processes of the machine (as
/// launchers count them: `LOCAL_RANK`, `Job::local_pe` of `peerweave-bootstrap`): that of the same
/// ordinal; or the only device that this process sees, where the launcher shows each process its
/// own (`CUDA_VISIBLE_DEVICES`).
///
/// Never by the index among all processes of a job, which is no ordinal on the second machine.
///
/// # Errors
/// [`DriverError::NoSuchDevice`] where this process sees several devices, and not so many; those of
/// [`Driver::get`].
pub fn local_context(local_index: usize) -> Result<Arc<CudaContext>, DriverError> {
    let count = Driver::get()?.device_count()?;
    context(if count == 1 { 0 } else { local_index })
}

/// Makes a context the thread's current one. Not by cudarc's `bind_to_thread`, which first gives,
/// and forgets, an error that some other object's destructor left in the context.
///
/// # Errors
/// What the driver says.
#[inline]
pub fn bind(context: &CudaContext) -> Result<(), DriverError> {
    // SAFETY: the context is live as long as cudarc's object.
    let code = unsafe { Driver::get()?.api().cuCtxSetCurrent(context.cu_ctx()) }?;
    Ok(CudaError::check("cuCtxSetCurrent", code)?)
}

/// As [`bind`], at the cost of a question alone where the context is current already.
///
/// # Errors
/// As [`bind`].
#[inline]
pub fn bind_if_needed(context: &CudaContext) -> Result<(), DriverError> {
    if is_current(context) { Ok(()) } else { bind(context) }
}

/// Whether a context is the thread's current one.
#[inline]
pub(crate) fn is_current(context: &CudaContext) -> bool {
    let mut current: CUcontext = std::ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    let code = Driver::get().map(|driver| unsafe { driver.api().cuCtxGetCurrent(&raw mut current) });
    matches!(code, Ok(Ok(CudaCode::SUCCESS))) && current == context.cu_ctx()
}

/// Runs something that may make another context the thread's current one, and makes the one from
/// before current again, also after a panic.
///
/// For destructors: a value is dropped at any place, and the code around it counts on its own
/// context. Costs two calls of the driver.
pub fn with_context_kept<R>(run: impl FnOnce() -> R) -> R {
    struct Before(&'static Api, CUcontext);
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: it was the thread's current context, or none; who made it so keeps it live.
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
