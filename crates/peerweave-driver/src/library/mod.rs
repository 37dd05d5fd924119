//! The driver of this process, loaded and initialised once.
//!
//! Invariant: cudarc and this crate load the same library, because they try the same file names in
//! the same order.

pub(crate) mod api;
mod code;
pub(crate) mod context;
pub(crate) mod error;
pub(crate) mod launch_error;
mod switch;

pub use api::Api;
pub use code::CudaCode;
pub(crate) use context::is_current;
pub use context::{bind, bind_if_needed, context, local_context, with_context_kept};
pub use error::{CudaError, DriverError};
pub use switch::{MulticastDisabled, multicast_switch};

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use peerweave_dylib::{LoadError, Search, Version, Visibility};

use crate::cudarc::driver::sys::{CUdevice, CUdevice_attribute};

// SAFETY: a library with one of these names is CUDA's driver, or a substitute for it.
const SEARCH: Search = unsafe { Search::without_variable("CUDA's driver", &["libcuda.so", "libcuda.so.1"]) };

/// CUDA's driver, loaded and initialised.
#[derive(Debug)]
pub struct Driver {
    api: Api,
}

static LOADED: OnceLock<Result<Driver, LoadError>> = OnceLock::new();

impl Driver {
    /// Returns the driver of this process. The first call loads and initialises the driver.
    ///
    /// # Errors
    /// [`DriverError::Load`] if this machine has no driver. [`DriverError::Cuda`] if the
    /// initialisation fails, for example because the machine has no device, or because the versions
    /// of the driver and the kernel module differ. After an error, every later call returns the
    /// same error.
    pub fn get() -> Result<&'static Self, DriverError> {
        let driver = LOADED.get_or_init(|| SEARCH.open(Visibility::Local).map(|library| Self { api: Api::new(library) }));
        let driver = driver.as_ref().map_err(|error| DriverError::Load(error.clone()))?;
        static STARTED: OnceLock<CudaCode> = OnceLock::new();
        let code = match STARTED.get() {
            Some(code) => *code,
            None => {
                // SAFETY: no flags are defined. Any thread may call `cuInit`, and more than once.
                let code = unsafe { driver.api.cuInit(0) }?;
                *STARTED.get_or_init(|| code)
            }
        };
        CudaError::check("cuInit", code)?;
        Ok(driver)
    }

    /// Returns the driver's functions.
    #[inline]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Returns the newest CUDA version that the driver supports. The patch version is always 0.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn version(&self) -> Result<Version, DriverError> {
        let mut code: c_int = 0;
        // SAFETY: the pointer is to a live integer.
        CudaError::check("cuDriverGetVersion", unsafe { self.api.cuDriverGetVersion(&raw mut code) }?)?;
        let code = code.unsigned_abs();
        Ok(Version::of_numbers([code / 1000, code % 1000 / 10, 0]))
    }

    /// Returns the number of visible devices.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn device_count(&self) -> Result<usize, DriverError> {
        let mut count: c_int = 0;
        // SAFETY: the pointer is to a live integer.
        CudaError::check("cuDeviceGetCount", unsafe { self.api.cuDeviceGetCount(&raw mut count) }?)?;
        Ok(count.unsigned_abs() as usize)
    }

    /// Returns an attribute of a device.
    ///
    /// # Errors
    /// Errors of the driver, such as `CUDA_ERROR_INVALID_VALUE` for an attribute that the driver
    /// does not know.
    pub fn attribute(&self, ordinal: usize, attribute: CUdevice_attribute) -> Result<i32, DriverError> {
        let device = CUdevice::try_from(ordinal).unwrap_or(CUdevice::MAX);
        let mut value: c_int = 0;
        // SAFETY: the pointer is to a live integer; the driver checks the device and the attribute.
        CudaError::check("cuDeviceGetAttribute", unsafe { self.api.cuDeviceGetAttribute(&raw mut value, attribute, device) }?)?;
        Ok(value)
    }
}

/// Returns the name and the description of a code, as the loaded driver reports them. If no driver
/// is loaded, or if the driver does not know the code, the name contains the number of the code.
pub(crate) fn describe(code: CudaCode) -> (String, String) {
    let unknown = || (format!("CUresult {}", code.0), "no description is available".to_owned());
    let Some(Ok(driver)) = LOADED.get() else { return unknown() };
    let (mut name, mut text): (*const c_char, *const c_char) = (std::ptr::null(), std::ptr::null());
    // SAFETY: the pointers are to live pointers. The driver stores the addresses of constants, or
    // nothing for an unknown code.
    let known = unsafe {
        matches!(driver.api.cuGetErrorName(code.0, &raw mut name), Ok(CudaCode::SUCCESS))
            && matches!(driver.api.cuGetErrorString(code.0, &raw mut text), Ok(CudaCode::SUCCESS))
    };
    if !known || name.is_null() || text.is_null() {
        return unknown();
    }
    // SAFETY: both addresses are those of the driver's constant texts, which end in a zero byte.
    unsafe { (CStr::from_ptr(name).to_string_lossy().into_owned(), CStr::from_ptr(text).to_string_lossy().into_owned()) }
}
