//! The driver of this process: found once, initialised once.
//!
//! Invariant: the library is the one that cudarc opens, since both ask the dynamic linker for the same names in the same order.

use std::ffi::{CStr, c_char, c_int};
use std::sync::{Arc, OnceLock};

use peerweave_dylib::{LoadError, Search, Version, Visibility};

use crate::cudarc::driver::CudaContext;
use crate::cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute};
use crate::{Api, CudaCode, CudaError, DriverError};

// SAFETY: what a system has under these names is CUDA's driver, or stands in for it.
const SEARCH: Search = unsafe { Search::without_variable("CUDA's driver", &["libcuda.so", "libcuda.so.1"]) };

/// CUDA's driver, loaded and initialised.
#[derive(Debug)]
pub struct Driver {
    api: Api,
}

static LOADED: OnceLock<Result<Driver, LoadError>> = OnceLock::new();

impl Driver {
    /// The driver of this process. The first call loads and initialises it.
    ///
    /// # Errors
    /// [`DriverError::Load`] where there is none, [`DriverError::Cuda`] where it does not start (no device, driver and kernel module of different
    /// versions). Both are remembered: every later call gives the same.
    pub fn get() -> Result<&'static Self, DriverError> {
        let driver = LOADED.get_or_init(|| SEARCH.open(Visibility::Local).map(|library| Self { api: Api::new(library) }));
        let driver = driver.as_ref().map_err(|error| DriverError::Load(error.clone()))?;
        static STARTED: OnceLock<CudaCode> = OnceLock::new();
        let code = match STARTED.get() {
            Some(code) => *code,
            None => {
                // SAFETY: no flags are defined; any thread may call it, and more than once.
                let code = unsafe { driver.api.cuInit(0) }?;
                *STARTED.get_or_init(|| code)
            }
        };
        CudaError::check("cuInit", code)?;
        Ok(driver)
    }

    /// The driver's functions.
    #[inline]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The newest CUDA that the driver serves; its patch is 0.
    ///
    /// # Errors
    /// What the driver says.
    pub fn version(&self) -> Result<Version, DriverError> {
        let mut code: c_int = 0;
        // SAFETY: the pointer is to a live integer.
        CudaError::check("cuDriverGetVersion", unsafe { self.api.cuDriverGetVersion(&raw mut code) }?)?;
        let code = code.unsigned_abs();
        Ok(Version::of_numbers([code / 1000, code % 1000 / 10, 0]))
    }

    /// How many devices this process sees.
    ///
    /// # Errors
    /// What the driver says.
    pub fn device_count(&self) -> Result<usize, DriverError> {
        let mut count: c_int = 0;
        // SAFETY: the pointer is to a live integer.
        CudaError::check("cuDeviceGetCount", unsafe { self.api.cuDeviceGetCount(&raw mut count) }?)?;
        Ok(count.unsigned_abs() as usize)
    }

    /// An attribute of a device.
    ///
    /// # Errors
    /// What the driver says; an attribute that it does not know is `CUDA_ERROR_INVALID_VALUE`.
    pub fn attribute(&self, ordinal: usize, attribute: CUdevice_attribute) -> Result<i32, DriverError> {
        let device = CUdevice::try_from(ordinal).unwrap_or(CUdevice::MAX);
        let mut value: c_int = 0;
        // SAFETY: the pointer is to a live integer; the driver checks the rest.
        CudaError::check("cuDeviceGetAttribute", unsafe { self.api.cuDeviceGetAttribute(&raw mut value, attribute, device) }?)?;
        Ok(value)
    }
}

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

/// The context of this process's own device, by its index among the processes of the machine (as launchers count them: `LOCAL_RANK`,
/// `Job::local_pe` of `peerweave-bootstrap`): that of the same ordinal; or the only device that this process sees, where the launcher shows each process
/// its own (`CUDA_VISIBLE_DEVICES`).
///
/// Never by the index among all processes of a job, which is no ordinal on the second machine.
///
/// # Errors
/// [`DriverError::NoSuchDevice`] where this process sees several devices, and not so many; those of [`Driver::get`].
pub fn local_context(local_index: usize) -> Result<Arc<CudaContext>, DriverError> {
    let count = Driver::get()?.device_count()?;
    context(if count == 1 { 0 } else { local_index })
}

/// Makes a context the thread's current one. Not by cudarc's `bind_to_thread`, which first gives, and forgets, an error that some other object's
/// destructor left in the context.
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

/// Runs something that may make another context the thread's current one, and makes the one from before current again, also after a panic.
///
/// For destructors: a value is dropped at any place, and the code around it counts on its own context. Costs two calls of the driver.
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

/// Name and description of a code, in the driver's words if it is there.
pub(crate) fn describe(code: CudaCode) -> (String, String) {
    let unknown = || (format!("CUresult {}", code.0), "no description".to_owned());
    let Some(Ok(driver)) = LOADED.get() else { return unknown() };
    let (mut name, mut text): (*const c_char, *const c_char) = (std::ptr::null(), std::ptr::null());
    // SAFETY: the pointers are to live pointers; the driver stores the addresses of constants, or nothing for a code it does not know.
    let known = unsafe {
        matches!(driver.api.cuGetErrorName(code.0, &raw mut name), Ok(CudaCode::SUCCESS))
            && matches!(driver.api.cuGetErrorString(code.0, &raw mut text), Ok(CudaCode::SUCCESS))
    };
    if !known || name.is_null() || text.is_null() {
        return unknown();
    }
    // SAFETY: both are constants of the driver, ended by zero.
    unsafe { (CStr::from_ptr(name).to_string_lossy().into_owned(), CStr::from_ptr(text).to_string_lossy().into_owned()) }
}
