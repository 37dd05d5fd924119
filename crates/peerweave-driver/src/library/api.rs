//! The functions of the driver that this crate declares itself, because cudarc lacks them, or
//! because cudarc panics if the driver is too old.
//!
//! Each declaration states the first version of CUDA whose driver has the function.
//!
//! Invariant: no result of the driver is declared as an enumeration, neither a returned value nor a
//! value behind a pointer. A newer driver may return further values.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUcontext, CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUdeviceptr, CUevent, CUgraph, CUhostFn,
    CUipcEventHandle, CUipcMemHandle, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation, CUmulticastGranularity_flags, CUmulticastObjectProp,
    CUpointer_attribute, CUstream, CUuserObject,
};

use crate::CudaCode;

peerweave_dylib::bindings! {
    /// The functions of CUDA's driver. Each function is resolved at its first call.
    pub struct Api {
        /// Initialises the driver.
        "2.0" fn cuInit(flags: c_uint) -> CudaCode;
        /// Returns the newest CUDA version that the driver supports, as the number 1000 × major +
        /// 10 × minor.
        "2.2" fn cuDriverGetVersion(version: *mut c_int) -> CudaCode;
        /// Returns the name of an error code.
        "6.0" fn cuGetErrorName(error: c_uint, name: *mut *const c_char) -> CudaCode;
        /// Returns the description of an error code.
        "6.0" fn cuGetErrorString(error: c_uint, text: *mut *const c_char) -> CudaCode;
        /// Returns the number of devices.
        "2.0" fn cuDeviceGetCount(count: *mut c_int) -> CudaCode;
        /// Returns an attribute of a device.
        "2.0" fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice) -> CudaCode;
        /// Returns the PCI address of a device as text.
        "4.1" fn cuDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: CUdevice) -> CudaCode;
        /// Returns an attribute of the link between two devices.
        "8.0" fn cuDeviceGetP2PAttribute(value: *mut c_int, attribute: CUdevice_P2PAttribute, source: CUdevice, target: CUdevice) -> CudaCode;
        /// Returns whether a device can access the memory of another device.
        "4.0" fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice) -> CudaCode;
        /// Gives the current context access to the memory of another context.
        "4.0" fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) -> CudaCode;
        /// Removes the current context's access to the memory of another context.
        "4.0" fn cuCtxDisablePeerAccess(peer: CUcontext) -> CudaCode;
        /// Returns the thread's current context.
        "4.0" fn cuCtxGetCurrent(context: *mut CUcontext) -> CudaCode;
        /// Makes a context current in this thread.
        "4.0" fn cuCtxSetCurrent(context: CUcontext) -> CudaCode;

        /// Allocates device memory.
        "3.2" fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) -> CudaCode;
        /// Frees device memory.
        "3.2" fn cuMemFree_v2(address: CUdeviceptr) -> CudaCode;
        /// Returns the free and the total memory of the current device, in bytes.
        "3.2" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CudaCode;
        /// Frees memory in stream order without waiting for the device. Can also free memory that
        /// `cuMemAlloc` allocated.
        "11.2" fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> CudaCode;
        /// Returns the start and the length of an allocation.
        "3.2" fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr) -> CudaCode;
        /// Returns an attribute of an address.
        "4.0" fn cuPointerGetAttribute(value: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr) -> CudaCode;
        /// Copies memory in stream order.
        "4.0" fn cuMemcpyAsync(target: CUdeviceptr, source: CUdeviceptr, bytes: usize, stream: CUstream) -> CudaCode;
        /// Copies host memory to a device in stream order.
        "3.2" fn cuMemcpyHtoDAsync_v2(target: CUdeviceptr, source: *const c_void, bytes: usize, stream: CUstream) -> CudaCode;
        /// Copies device memory to the host in stream order.
        "3.2" fn cuMemcpyDtoHAsync_v2(target: *mut c_void, source: CUdeviceptr, bytes: usize, stream: CUstream) -> CudaCode;
        /// Copies a two-dimensional range, whose rows have a pitch, in stream order.
        "3.2" fn cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream) -> CudaCode;
        /// Fills memory with copies of one byte in stream order.
        "3.2" fn cuMemsetD8Async(target: CUdeviceptr, value: u8, count: usize, stream: CUstream) -> CudaCode;
        /// Fills memory with copies of one 32-bit word in stream order.
        "3.2" fn cuMemsetD32Async(target: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) -> CudaCode;

        /// Creates a stream.
        "2.0" fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> CudaCode;
        /// Destroys a stream. Its pending work is still executed.
        "4.0" fn cuStreamDestroy_v2(stream: CUstream) -> CudaCode;
        /// Returns whether a stream's work is complete.
        "2.0" fn cuStreamQuery(stream: CUstream) -> CudaCode;
        /// Waits without a deadline until a stream's work is complete. Used only for work that is
        /// certain to end.
        "2.0" fn cuStreamSynchronize(stream: CUstream) -> CudaCode;
        /// Makes a stream wait for an event.
        "3.2" fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> CudaCode;
        /// Calls a function of the host in stream order.
        "10.0" fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void) -> CudaCode;
        /// Returns whether a stream is being captured.
        "10.0" fn cuStreamIsCapturing(stream: CUstream, status: *mut c_uint) -> CudaCode;
        /// Sets the capture mode of this thread, and returns the previous mode. The mode determines
        /// which calls the thread may make while streams are being captured.
        "10.1" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> CudaCode;
        /// Returns the graph that a stream is being captured into.
        "11.3" fn cuStreamGetCaptureInfo_v2(
            stream: CUstream, status: *mut c_uint, id: *mut u64, graph: *mut CUgraph,
            dependencies: *mut *const c_void, n_dependencies: *mut usize,
        ) -> CudaCode;
        /// Creates an event.
        "2.0" fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CudaCode;
        /// Records an event after all work that was enqueued on a stream before this call.
        "2.0" fn cuEventRecord(event: CUevent, stream: CUstream) -> CudaCode;
        /// Returns whether the work before an event is complete.
        "2.0" fn cuEventQuery(event: CUevent) -> CudaCode;
        /// Returns the time between two complete events in milliseconds. The events must record
        /// times.
        "2.0" fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) -> CudaCode;
        /// Destroys an event.
        "4.0" fn cuEventDestroy_v2(event: CUevent) -> CudaCode;
        /// Creates a user object, which calls the function `destroy` when the last reference to the
        /// object is released.
        "11.3" fn cuUserObjectCreate(
            object: *mut CUuserObject, pointer: *mut c_void, destroy: CUhostFn, references: c_uint, flags: c_uint,
        ) -> CudaCode;
        /// Releases references to a user object.
        "11.3" fn cuUserObjectRelease(object: CUuserObject, count: c_uint) -> CudaCode;
        /// Makes a graph hold references to a user object. The references are either new or moved
        /// from the caller to the graph.
        "11.3" fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint) -> CudaCode;

        /// Returns the granularity for allocations of physical memory, in bytes. The caller selects
        /// the minimum or the recommended granularity.
        "10.2" fn cuMemGetAllocationGranularity(
            granularity: *mut usize, properties: *const CUmemAllocationProp, which: CUmemAllocationGranularity_flags,
        ) -> CudaCode;
        /// Allocates physical memory.
        "10.2" fn cuMemCreate(
            handle: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const CUmemAllocationProp, flags: u64,
        ) -> CudaCode;
        /// Releases a handle of physical memory.
        "10.2" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CudaCode;
        /// Reserves a range of addresses.
        "10.2" fn cuMemAddressReserve(
            address: *mut CUdeviceptr, bytes: usize, alignment: usize, wish: CUdeviceptr, flags: u64,
        ) -> CudaCode;
        /// Releases a reserved range of addresses.
        "10.2" fn cuMemAddressFree(address: CUdeviceptr, bytes: usize) -> CudaCode;
        /// Maps physical memory at reserved addresses.
        "10.2" fn cuMemMap(
            address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64,
        ) -> CudaCode;
        /// Unmaps memory.
        "10.2" fn cuMemUnmap(address: CUdeviceptr, bytes: usize) -> CudaCode;
        /// Sets the access rights of devices to mapped memory.
        "10.2" fn cuMemSetAccess(address: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize) -> CudaCode;
        /// Returns the access rights of one device to mapped memory.
        "10.2" fn cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, address: CUdeviceptr) -> CudaCode;
        /// Exports physical memory: returns a handle that other processes can import.
        "10.2" fn cuMemExportToShareableHandle(
            shareable: *mut c_void, handle: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType, flags: u64,
        ) -> CudaCode;
        /// Imports a handle of physical memory that another process exported.
        "10.2" fn cuMemImportFromShareableHandle(
            handle: *mut CUmemGenericAllocationHandle, shareable: *mut c_void, kind: CUmemAllocationHandleType,
        ) -> CudaCode;
        /// Returns the properties of physical memory in a struct with the layout of
        /// `CUmemAllocationProp`. The parameter does not have this type, because a newer driver may
        /// store enumeration values that the type in Rust lacks.
        "10.2" fn cuMemGetAllocationPropertiesFromHandle(
            properties: *mut c_void, handle: CUmemGenericAllocationHandle,
        ) -> CudaCode;
        /// Returns a handle of the physical memory that is mapped at an address. The caller must
        /// release the handle.
        "11.0" fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, address: *mut c_void) -> CudaCode;

        /// Returns an IPC handle by which other processes can open an allocation.
        "4.1" fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) -> CudaCode;
        /// Opens an allocation of another process by its IPC handle.
        "11.0" fn cuIpcOpenMemHandle_v2(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) -> CudaCode;
        /// Closes an allocation that `cuIpcOpenMemHandle_v2` opened.
        "4.1" fn cuIpcCloseMemHandle(address: CUdeviceptr) -> CudaCode;
        /// Returns an IPC handle by which other processes can open an event.
        "4.1" fn cuIpcGetEventHandle(handle: *mut CUipcEventHandle, event: CUevent) -> CudaCode;
        /// Opens an event of another process by its IPC handle.
        "4.1" fn cuIpcOpenEventHandle(event: *mut CUevent, handle: CUipcEventHandle) -> CudaCode;

        /// Creates a multicast object. Every caller checks
        /// [`multicast_switch`](crate::multicast_switch) first.
        "12.1" fn cuMulticastCreate(handle: *mut CUmemGenericAllocationHandle, properties: *const CUmulticastObjectProp) -> CudaCode;
        /// Adds a device to a multicast object.
        "12.1" fn cuMulticastAddDevice(handle: CUmemGenericAllocationHandle, device: CUdevice) -> CudaCode;
        /// Binds physical memory to a multicast object.
        "12.1" fn cuMulticastBindMem(
            handle: CUmemGenericAllocationHandle, offset: usize, memory: CUmemGenericAllocationHandle, memory_offset: usize,
            bytes: usize, flags: u64,
        ) -> CudaCode;
        /// Binds mapped memory to a multicast object.
        "12.1" fn cuMulticastBindAddr(
            handle: CUmemGenericAllocationHandle, offset: usize, address: CUdeviceptr, bytes: usize, flags: u64,
        ) -> CudaCode;
        /// Unbinds a device's memory from a multicast object.
        "12.1" fn cuMulticastUnbind(handle: CUmemGenericAllocationHandle, device: CUdevice, offset: usize, bytes: usize) -> CudaCode;
        /// Returns the granularity for binding memory to a multicast object, in bytes. The caller
        /// selects the minimum or the recommended granularity.
        "12.1" fn cuMulticastGetGranularity(
            granularity: *mut usize, properties: *const CUmulticastObjectProp, which: CUmulticastGranularity_flags,
        ) -> CudaCode;
    }
}
