//! The structures that functions of the driver take and return.

use core::ffi::{c_int, c_uint, c_void};

use super::handles::{CuPtr, CuStream, HostFn};

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

impl Location {
    /// `CU_MEM_LOCATION_TYPE_DEVICE`.
    pub(crate) const DEVICE: c_int = 1;
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationProp {
    pub(crate) kind: c_int,
    pub(crate) handle_types: c_int,
    pub(crate) location: Location,
    pub(crate) win32: usize,
    pub(crate) compression: u8,
    pub(crate) rdma: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessDesc {
    pub(crate) location: Location,
    pub(crate) flags: c_int,
}

/// `CUmulticastObjectProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MulticastProp {
    pub(crate) devices: u32,
    pub(crate) size: usize,
    pub(crate) handle_types: u64,
    pub(crate) flags: u64,
}

/// `CUmemPoolProps`; its last fields differ among versions, its size does not.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PoolProps {
    pub(crate) kind: c_int,
    pub(crate) handle_types: c_int,
    pub(crate) location: Location,
    pub(crate) security: usize,
    pub(crate) max_size: usize,
    pub(crate) reserved: [u8; 56],
}

/// `CUipcMemHandle`, `CUipcEventHandle` and `CUmemFabricHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Handle64 {
    pub(crate) bytes: [u8; 64],
}

/// `CUuuid`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Uuid {
    pub(crate) bytes: [u8; 16],
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Copy2d {
    pub(crate) src_x: usize,
    pub(crate) src_y: usize,
    pub(crate) src_kind: c_int,
    pub(crate) src_host: usize,
    pub(crate) src_device: CuPtr,
    pub(crate) src_array: usize,
    pub(crate) src_pitch: usize,
    pub(crate) dst_x: usize,
    pub(crate) dst_y: usize,
    pub(crate) dst_kind: c_int,
    pub(crate) dst_host: usize,
    pub(crate) dst_device: CuPtr,
    pub(crate) dst_array: usize,
    pub(crate) dst_pitch: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct HostNodeParams {
    pub(crate) function: HostFn,
    pub(crate) data: *mut c_void,
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) stream: CuStream,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) n_attributes: c_uint,
}

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchAttribute {
    pub(crate) id: c_uint,
    pub(crate) value: [u64; 8],
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{align_of, offset_of, size_of};
    use cudarc::driver::sys;

    #[test]
    fn structures_have_the_layout_of_the_cuda_header() {
        assert_eq!(size_of::<Location>(), size_of::<sys::CUmemLocation>());
        assert_eq!(size_of::<AllocationProp>(), size_of::<sys::CUmemAllocationProp>());
        assert_eq!(offset_of!(AllocationProp, location), offset_of!(sys::CUmemAllocationProp, location));
        assert_eq!(offset_of!(AllocationProp, handle_types), offset_of!(sys::CUmemAllocationProp, requestedHandleTypes));
        assert_eq!(offset_of!(AllocationProp, compression), offset_of!(sys::CUmemAllocationProp, allocFlags));
        assert_eq!(size_of::<AccessDesc>(), size_of::<sys::CUmemAccessDesc>());
        assert_eq!(size_of::<MulticastProp>(), size_of::<sys::CUmulticastObjectProp>());
        assert_eq!(offset_of!(MulticastProp, size), offset_of!(sys::CUmulticastObjectProp, size));
        assert_eq!(offset_of!(MulticastProp, flags), offset_of!(sys::CUmulticastObjectProp, flags));
        assert_eq!(size_of::<PoolProps>(), size_of::<sys::CUmemPoolProps>());
        assert_eq!(size_of::<Handle64>(), size_of::<sys::CUipcMemHandle>());
        assert_eq!(align_of::<Handle64>(), align_of::<sys::CUipcMemHandle>());
        assert_eq!(size_of::<Handle64>(), size_of::<sys::CUipcEventHandle>());
        assert_eq!(size_of::<Handle64>(), size_of::<sys::CUmemFabricHandle>());
        assert_eq!(size_of::<Uuid>(), size_of::<sys::CUuuid>());
        assert_eq!(size_of::<Copy2d>(), size_of::<sys::CUDA_MEMCPY2D>());
        assert_eq!(offset_of!(Copy2d, dst_device), offset_of!(sys::CUDA_MEMCPY2D, dstDevice));
        assert_eq!(offset_of!(Copy2d, height), offset_of!(sys::CUDA_MEMCPY2D, Height));
        assert_eq!(size_of::<HostNodeParams>(), size_of::<sys::CUDA_HOST_NODE_PARAMS>());
        assert_eq!(size_of::<LaunchConfig>(), size_of::<sys::CUlaunchConfig>());
        assert_eq!(offset_of!(LaunchConfig, stream), offset_of!(sys::CUlaunchConfig, hStream));
        assert_eq!(offset_of!(LaunchConfig, n_attributes), offset_of!(sys::CUlaunchConfig, numAttrs));
        assert_eq!(size_of::<LaunchAttribute>(), size_of::<sys::CUlaunchAttribute>());
        assert_eq!(offset_of!(LaunchAttribute, value), offset_of!(sys::CUlaunchAttribute, value));
    }
}
