//! The functions of CUDA's driver for modules and kernels, and the structs that these functions
//! use.
//!
//! This file declares the structs itself, because cudarc's structs depend on the CUDA version for
//! which a program is built. Invariant: each struct has the size and layout of the struct in the
//! driver's header. A test in this file compares the structs with cudarc's structs.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::cudarc::driver::sys::{CUdeviceptr, CUfunction, CUmodule, CUstream};
use crate::{CudaCode, CudaError, Driver, DriverError};

peerweave_dylib::bindings! {
    /// The driver's functions for modules and kernels. Each function is resolved at its first call.
    pub(super) struct LaunchApi {
        /// Loads a module from an image, which is machine code or PTX. The driver compiles PTX.
        "2.1" fn cuModuleLoadDataEx(
            module: *mut CUmodule, image: *const c_void, n_options: c_uint, options: *mut c_int, values: *mut *mut c_void,
        ) -> CudaCode;
        /// Unloads a module.
        "2.0" fn cuModuleUnload(module: CUmodule) -> CudaCode;
        /// Returns the kernel with the given name in a module.
        "2.0" fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) -> CudaCode;
        /// Returns the address and the length of the variable with the given name in a module.
        "3.2" fn cuModuleGetGlobal_v2(address: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char) -> CudaCode;
        /// Loads a kernel. Without this call, the driver loads the kernel at its first launch.
        "12.4" fn cuFuncLoad(function: CUfunction) -> CudaCode;
        /// Returns the offset and the length of a kernel's parameter, in bytes.
        "12.4" fn cuFuncGetParamInfo(function: CUfunction, index: usize, offset: *mut usize, bytes: *mut usize) -> CudaCode;
        /// Returns an attribute of a kernel.
        "2.2" fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CUfunction) -> CudaCode;
        /// Sets an attribute of a kernel.
        "9.0" fn cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int) -> CudaCode;
        /// Returns the maximum number of resident blocks of a kernel on an SM.
        "6.5" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
            count: *mut c_int, function: CUfunction, threads: c_int, shared_bytes: usize,
        ) -> CudaCode;
        /// Allocates pinned host memory that devices can access.
        "2.2" fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint) -> CudaCode;
        /// Frees pinned host memory.
        "2.0" fn cuMemFreeHost(address: *mut c_void) -> CudaCode;
        /// Returns the address at which the current device accesses pinned host memory.
        "3.2" fn cuMemHostGetDevicePointer_v2(device: *mut CUdeviceptr, address: *mut c_void, flags: c_uint) -> CudaCode;
        /// Launches a kernel.
        "11.8" fn cuLaunchKernelEx(
            config: *const RawConfig, function: CUfunction, arguments: *mut *mut c_void, extra: *mut *mut c_void,
        ) -> CudaCode;
    }
}

/// The driver's struct `CUlaunchConfig`: the shape, the stream and the attributes of a launch.
#[repr(C)]
pub(super) struct RawConfig {
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) stream: CUstream,
    pub(super) attributes: *const RawAttribute,
    pub(super) n_attributes: c_uint,
}

/// The driver's struct `CUlaunchAttribute`: one attribute of a launch.
#[repr(C)]
pub(super) struct RawAttribute {
    pub(super) id: c_uint,
    pub(super) value: [u64; 8],
}

impl RawAttribute {
    /// Number of the attribute `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
    pub(super) const COOPERATIVE: c_uint = 2;
    /// Number of the attribute `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
    pub(super) const PROGRAMMATIC: c_uint = 6;

    /// Returns a launch attribute. `id` is the number of the attribute. The value of the attribute
    /// is the integer 1, which enables the option.
    pub(super) fn on(id: c_uint) -> Self {
        let mut value = [0; 8];
        // The driver reads the integer from the first bytes of the value. All machines with CUDA
        // are little-endian, so the integer is the low half of `value[0]`.
        value[0] = 1;
        Self { id, value }
    }
}

pub(super) fn api() -> Result<&'static LaunchApi, DriverError> {
    static API: OnceLock<LaunchApi> = OnceLock::new();
    let driver = Driver::get()?;
    Ok(API.get_or_init(|| LaunchApi::new(driver.api().library().clone())))
}

/// Returns an error that names `call` if the driver returned an error code, or if the driver lacks
/// the function.
pub(super) fn done(call: &'static str, code: Result<CudaCode, peerweave_dylib::MissingSymbol>) -> Result<(), DriverError> {
    Ok(CudaError::check(call, code?)?)
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;
    use crate::cudarc::driver::sys::{CUlaunchAttribute, CUlaunchConfig};

    #[test]
    fn launch_structs_have_the_layout_of_the_cuda_header() {
        assert_eq!(size_of::<RawConfig>(), size_of::<CUlaunchConfig>());
        assert_eq!(offset_of!(RawConfig, stream), offset_of!(CUlaunchConfig, hStream));
        assert_eq!(offset_of!(RawConfig, attributes), offset_of!(CUlaunchConfig, attrs));
        assert_eq!(offset_of!(RawConfig, n_attributes), offset_of!(CUlaunchConfig, numAttrs));
        assert_eq!(size_of::<RawAttribute>(), size_of::<CUlaunchAttribute>());
        assert_eq!(offset_of!(RawAttribute, value), offset_of!(CUlaunchAttribute, value));
    }
}
