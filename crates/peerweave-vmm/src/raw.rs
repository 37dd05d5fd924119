//! The driver's structs, declared as plain data, and the conversion of the driver's codes to
//! errors.
//!
//! The structs are declared here because cudarc's declarations depend on the CUDA version for which
//! a program is built. The driver's structs do not depend on this version. Invariant: each struct
//! has the size and layout of its counterpart in the driver's header. Assertions in this file
//! compare the size of each struct with the size of cudarc's struct.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use peerweave_driver::cudarc::driver::sys::{
    CUdevice, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp, CUmulticastObjectProp,
};
use peerweave_driver::{Api, CudaCode, CudaError, Driver, DriverError};
use peerweave_dylib::MissingSymbol;

use crate::VmmError;

peerweave_dylib::bindings! {
    /// Driver functions that this crate declares itself: either `peerweave_driver::Api` lacks the
    /// function, or an enumeration in its declaration lacks values that this crate passes.
    pub(crate) struct Extra {
        /// Returns the name of a device.
        "2.0" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) -> CudaCode;
        /// Returns an attribute of a device.
        "2.0" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice) -> CudaCode;
    }
}

/// Device attributes that this crate queries. The values are the driver's numbers.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum Attribute {
    Vmm = 102,
    FileDescriptor = 103,
    RdmaWithVmm = 110,
    Fabric = 128,
    Multicast = 132,
}

pub(crate) fn extra() -> Result<&'static Extra, VmmError> {
    static EXTRA: OnceLock<Extra> = OnceLock::new();
    let driver = Driver::get()?;
    Ok(EXTRA.get_or_init(|| Extra::new(driver.api().library().clone())))
}

/// Returns the name of a device.
pub(crate) fn device_name(ordinal: usize) -> Result<String, VmmError> {
    let mut text: [c_char; 128] = [0; 128];
    let device = CUdevice::try_from(ordinal).unwrap_or(CUdevice::MAX);
    // SAFETY: the array has one byte more than the length passed, so a zero byte follows the name.
    let code = unsafe { extra()?.cuDeviceGetName(text.as_mut_ptr(), text.len() as c_int - 1, device) };
    done("cuDeviceGetName", code)?;
    Ok(text_of(&text))
}

/// Returns the PCI address of a device.
pub(crate) fn pci_address(ordinal: usize) -> Result<String, VmmError> {
    let mut text: [c_char; 64] = [0; 64];
    let device = CUdevice::try_from(ordinal).unwrap_or(CUdevice::MAX);
    // SAFETY: the array has one byte more than the length passed, so a zero byte follows the
    // address.
    let code = unsafe { api()?.cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as c_int - 1, device) };
    done("cuDeviceGetPCIBusId", code)?;
    Ok(text_of(&text))
}

fn text_of(text: &[c_char]) -> String {
    // SAFETY: the driver got a length one byte shorter than the zeroed array, so a zero byte
    // follows.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
}

/// Returns whether a device attribute is not 0. Returns `false` if the driver does not know the
/// attribute.
pub(crate) fn has(ordinal: usize, attribute: Attribute) -> Result<bool, VmmError> {
    let extra = extra()?;
    let device = CUdevice::try_from(ordinal).unwrap_or(CUdevice::MAX);
    let mut value: c_int = 0;
    // SAFETY: the pointer is to a live integer; the driver checks the attribute and the device.
    match unsafe { extra.cuDeviceGetAttribute(&raw mut value, attribute as c_int, device) } {
        Ok(CudaCode::INVALID_VALUE) => Ok(false),
        code => done("cuDeviceGetAttribute", code).map(|()| value != 0),
    }
}

/// Returns the driver's functions.
pub(crate) fn api() -> Result<&'static Api, VmmError> {
    Ok(Driver::get()?.api())
}

/// Returns an error if the driver lacks the function `call`, or if the function returned an error
/// code.
#[inline]
pub(crate) fn done(call: &'static str, code: Result<CudaCode, MissingSymbol>) -> Result<(), VmmError> {
    let code = code.map_err(DriverError::from)?;
    Ok(CudaError::check(call, code).map_err(DriverError::from)?)
}

/// Makes the context of a device current in this thread.
pub(crate) fn bind(context: &peerweave_driver::CudaContext) -> Result<(), VmmError> {
    Ok(peerweave_driver::bind(context)?)
}

/// The driver's struct `CUmemLocation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Location {
    kind: u32,
    id: c_int,
}

impl Location {
    pub(crate) fn device(ordinal: usize) -> Self {
        /// The driver's constant `CU_MEM_LOCATION_TYPE_DEVICE`.
        const DEVICE: u32 = 1;
        Self { kind: DEVICE, id: c_int::try_from(ordinal).unwrap_or(c_int::MAX) }
    }
}

/// The driver's struct `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AllocationProperties {
    kind: u32,
    pub(crate) handles: u32,
    location: Location,
    windows: *mut c_void,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

impl AllocationProperties {
    pub(crate) fn on_device(ordinal: usize, handles: u32, rdma: bool) -> Self {
        /// The driver's constant `CU_MEM_ALLOCATION_TYPE_PINNED`.
        const PINNED: u32 = 1;
        Self {
            kind: PINNED,
            handles,
            location: Location::device(ordinal),
            windows: std::ptr::null_mut(),
            compression: 0,
            rdma: u8::from(rdma),
            usage: 0,
            reserved: [0; 4],
        }
    }

    pub(crate) fn as_ptr(&self) -> *const CUmemAllocationProp {
        (&raw const *self).cast()
    }
}

/// The driver's struct `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AccessDescription {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

/// The driver's struct `CUmulticastObjectProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MulticastDescription {
    pub(crate) devices: u32,
    pub(crate) bytes: usize,
    pub(crate) handles: u64,
    pub(crate) flags: u64,
}

const _: () = {
    assert!(size_of::<AllocationProperties>() == size_of::<CUmemAllocationProp>());
    assert!(size_of::<AccessDescription>() == size_of::<CUmemAccessDesc>());
    assert!(size_of::<MulticastDescription>() == size_of::<CUmulticastObjectProp>());
};

/// The driver's constant `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const FILE_DESCRIPTOR: CUmemAllocationHandleType = CUmemAllocationHandleType(1);
/// The driver's constant `CU_MEM_HANDLE_TYPE_FABRIC`.
pub(crate) const FABRIC: CUmemAllocationHandleType = CUmemAllocationHandleType(8);
