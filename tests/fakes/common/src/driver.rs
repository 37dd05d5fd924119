//! Calls the CUDA driver: streams, capture, contexts and memory. The first call finds the driver
//! that the process has loaded, or loads it.
//!
//! Contains no logic of a fake library. Invariant: every failed call of the driver returns an error
//! with the name of the function.

use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ffi::CStr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::LazyLock;

/// The reason why a call of the driver failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// There is no driver, or the driver lacks the function.
    Absent(&'static str),
    /// The function returned this code.
    Code(&'static str, c_int),
    /// The stream's capture has failed.
    Capture,
}

/// Result of a call of the driver.
pub type Result<T = ()> = core::result::Result<T, Broken>;

/// A function that a stream runs on the host.
pub type HostFunction = extern "C" fn(*mut c_void);

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Default)]
struct AllocationProp {
    kind: c_int,
    handle_types: c_int,
    location: [c_int; 2],
    win32: usize,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct AccessDesc {
    location: [c_int; 2],
    flags: c_int,
}

const DEVICE: c_int = 1;
const POSIX_FD: c_int = 1;
const READ_WRITE: c_int = 3;

macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*) => {
        struct Functions {
            $($name: Option<unsafe extern "C" fn($($type),*) -> c_int>,)*
        }

        impl Functions {
            fn load(library: *mut c_void) -> Self {
                Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: the library is open and the name ends with a zero.
                        let address = unsafe { libc::dlsym(library, name.as_ptr().cast::<c_char>()) };
                        // SAFETY: the driver's function of this name has this signature; null
                        // becomes `None`.
                        unsafe { core::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($type),*) -> c_int>>(address) }
                    },)*
                }
            }
        }

        $(
            #[allow(non_snake_case)]
            fn $name($($arg: $type),*) -> Result {
                let Some(function) = FUNCTIONS.as_ref().and_then(|functions| functions.$name) else {
                    return Err(Broken::Absent(stringify!($name)));
                };
                // SAFETY: the pointers that this module passes are to variables of the caller that
                // outlive the call.
                match unsafe { function($($arg),*) } {
                    0 => Ok(()),
                    code => Err(Broken::Code(stringify!($name), code)),
                }
            }
        )*
    };
}

functions! {
    fn cuInit(flags: c_uint);
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int);
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int);
    fn cuCtxGetCurrent(context: *mut usize);
    fn cuCtxSetCurrent(context: usize);
    fn cuCtxGetDevice(device: *mut c_int);
    fn cuLaunchHostFunc(stream: usize, function: HostFunction, data: *mut c_void);
    fn cuStreamSynchronize(stream: usize);
    fn cuStreamIsCapturing(stream: usize, status: *mut c_int);
    fn cuStreamGetCaptureInfo_v2(stream: usize, status: *mut c_int, id: *mut u64, graph: *mut usize, dependencies: *mut usize,
        count: *mut usize);
    fn cuUserObjectCreate(object: *mut usize, data: *mut c_void, destroy: HostFunction, count: c_uint, flags: c_uint);
    fn cuGraphRetainUserObject(graph: usize, object: usize, count: c_uint, flags: c_uint);
    fn cuEventCreate(event: *mut usize, flags: c_uint);
    fn cuEventDestroy_v2(event: usize);
    fn cuEventQuery(event: usize);
    fn cuEventRecord(event: usize, stream: usize);
    fn cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint);
    fn cuMemAlloc_v2(pointer: *mut usize, bytes: usize);
    fn cuMemFree_v2(pointer: usize);
    fn cuMemsetD8Async(address: u64, value: u8, count: usize, stream: usize);
    fn cuMemCreate(handle: *mut u64, bytes: usize, prop: *const AllocationProp, flags: c_ulonglong);
    fn cuMemRelease(handle: u64);
    fn cuMemAddressReserve(address: *mut u64, bytes: usize, alignment: usize, wish: u64, flags: c_ulonglong);
    fn cuMemAddressFree(address: u64, bytes: usize);
    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong);
    fn cuMemUnmap(address: u64, bytes: usize);
    fn cuMemSetAccess(address: u64, bytes: usize, access: *const AccessDesc, count: usize);
    fn cuMemExportToShareableHandle(out: *mut c_int, handle: u64, kind: c_int, flags: c_ulonglong);
    fn cuMemImportFromShareableHandle(handle: *mut u64, fd: usize, kind: c_int);
    fn cuMemRetainAllocationHandle(handle: *mut u64, address: usize);
    fn cuModuleGetGlobal_v2(pointer: *mut u64, bytes: *mut usize, module: usize, name: *const c_char);
    fn cuLibraryGetGlobal(pointer: *mut u64, bytes: *mut usize, library: usize, name: *const c_char);
}

static FUNCTIONS: LazyLock<Option<Functions>> = LazyLock::new(|| {
    let open = |flags| {
        let name: &CStr = c"libcuda.so.1";
        // SAFETY: the name is a C string; opening the driver runs its initialisers, and the program
        // under test loads the same driver.
        unsafe { libc::dlopen(name.as_ptr(), flags) }
    };
    let mut library = open(libc::RTLD_NOW | libc::RTLD_NOLOAD);
    if library.is_null() {
        library = open(libc::RTLD_NOW);
    }
    (!library.is_null()).then(|| Functions::load(library))
});

/// Returns the device of the calling thread's current context, and the context; `None` if no
/// context is current.
pub fn current_device() -> Result<Option<(c_int, usize)>> {
    cuInit(0)?;
    let (mut context, mut device) = (0, 0);
    cuCtxGetCurrent(&mut context)?;
    if context == 0 {
        return Ok(None);
    }
    cuCtxGetDevice(&mut device)?;
    Ok(Some((device, context)))
}

/// Returns the device and the context that are current on the calling thread. If no context is
/// current, returns device 0 and its primary context.
pub fn chosen_device() -> Result<(c_int, usize)> {
    current_device()?.map_or_else(|| device_of_ordinal(0), Ok)
}

/// Returns the device with this ordinal, and the device's primary context. The context stays
/// retained.
pub fn device_of_ordinal(ordinal: c_int) -> Result<(c_int, usize)> {
    cuInit(0)?;
    let (mut device, mut context) = (0, 0);
    cuDeviceGet(&mut device, ordinal)?;
    cuDevicePrimaryCtxRetain(&mut context, device)?;
    Ok((device, context))
}

/// Returns the number of devices.
pub fn device_count() -> Result<i32> {
    cuInit(0)?;
    let mut count = 0;
    cuDeviceGetCount(&mut count)?;
    Ok(count)
}

/// Returns the UUID of a device, which is the same in all processes.
pub fn uuid(device: c_int) -> Result<[u8; 16]> {
    let mut uuid = [0; 16];
    cuDeviceGetUuid_v2(&mut uuid, device)?;
    Ok(uuid)
}

/// Runs `body` with a context current, and restores the previous current context.
pub fn with_context<T, E: From<Broken>>(
    context: usize,
    body: impl FnOnce() -> core::result::Result<T, E>,
) -> core::result::Result<T, E> {
    let mut before = 0;
    cuCtxGetCurrent(&mut before)?;
    if before == context {
        return body();
    }
    cuCtxSetCurrent(context)?;
    let result = body();
    cuCtxSetCurrent(before)?;
    result
}

/// Enqueues a host function on a stream.
pub fn launch(stream: usize, function: HostFunction, data: *mut c_void) -> Result {
    cuLaunchHostFunc(stream, function, data)
}

/// Zeros memory in the order of the default stream of the calling thread's context. Does not wait.
pub fn zero(address: usize, bytes: usize) -> Result {
    const DEFAULT: usize = 0;
    cuMemsetD8Async(address as u64, 0, bytes, DEFAULT)
}

/// Waits for a stream.
pub fn synchronize(stream: usize) -> Result {
    cuStreamSynchronize(stream)
}

/// Returns whether work on the stream is captured into a graph.
pub fn is_capturing(stream: usize) -> Result<bool> {
    let mut status = 0;
    cuStreamIsCapturing(stream, &mut status)?;
    match status {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Broken::Capture),
    }
}

/// Makes the graph of the stream's capture call `destroy` with `data` when the graph is destroyed.
pub fn keep_in_graph(stream: usize, data: *mut c_void, destroy: HostFunction) -> Result {
    let (mut status, mut id, mut graph, mut dependencies, mut count) = (0, 0, 0, 0, 0);
    cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, &mut graph, &mut dependencies, &mut count)?;
    let mut object = 0;
    const NO_DESTRUCTOR_SYNC: c_uint = 1;
    cuUserObjectCreate(&mut object, data, destroy, 1, NO_DESTRUCTOR_SYNC)?;
    const MOVE: c_uint = 1;
    cuGraphRetainUserObject(graph, object, 1, MOVE)
}

/// Granularity of shareable memory, in bytes.
pub const GRANULARITY: usize = 2 << 20;

/// Creates shareable memory of a device and returns its handle.
pub fn create(device: c_int, bytes: usize) -> Result<u64> {
    let prop = AllocationProp { kind: 1, handle_types: POSIX_FD, location: [DEVICE, device], ..AllocationProp::default() };
    let mut handle = 0;
    cuMemCreate(&mut handle, bytes, &prop, 0)?;
    Ok(handle)
}

/// Returns the handle of the memory that is mapped at an address.
pub fn handle_at(address: usize) -> Result<u64> {
    let mut handle = 0;
    cuMemRetainAllocationHandle(&mut handle, address)?;
    Ok(handle)
}

/// Exports a handle's memory as a descriptor.
pub fn export(handle: u64) -> Result<OwnedFd> {
    let mut fd = -1;
    cuMemExportToShareableHandle(&mut fd, handle, POSIX_FD, 0)?;
    // SAFETY: the driver has just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Imports memory that another process exported, and returns its handle.
pub fn import(fd: c_int) -> Result<u64> {
    let mut handle = 0;
    cuMemImportFromShareableHandle(&mut handle, fd as usize, POSIX_FD)?;
    Ok(handle)
}

/// Releases a handle.
pub fn release(handle: u64) -> Result {
    cuMemRelease(handle)
}

/// Maps a handle's memory for a device, at `wish` if that address is free, and returns the address.
pub fn map(device: c_int, handle: u64, bytes: usize, wish: usize) -> Result<usize> {
    let mut address = 0;
    cuMemAddressReserve(&mut address, bytes, 0, wish as u64, 0)?;
    let access = AccessDesc { location: [DEVICE, device], flags: READ_WRITE };
    let mapped = cuMemMap(address, bytes, 0, handle, 0);
    let usable = mapped.and_then(|()| {
        cuMemSetAccess(address, bytes, &access, 1).inspect_err(|_| {
            let _ = cuMemUnmap(address, bytes);
        })
    });
    match usable {
        Ok(()) => Ok(address as usize),
        Err(failure) => {
            let _ = cuMemAddressFree(address, bytes);
            Err(failure)
        }
    }
}

/// Unmaps memory that [`map`] mapped, and frees its addresses.
pub fn unmap(address: usize, bytes: usize) -> Result {
    cuMemUnmap(address as u64, bytes)?;
    cuMemAddressFree(address as u64, bytes)
}

/// Returns the device address of a variable of a module.
pub fn global_of_module(module: usize, name: &CStr) -> Result<u64> {
    let (mut pointer, mut bytes) = (0, 0);
    cuModuleGetGlobal_v2(&mut pointer, &mut bytes, module, name.as_ptr())?;
    Ok(pointer)
}

/// Returns the device address of a variable of a library.
pub fn global_of_library(library: usize, name: &CStr) -> Result<u64> {
    let (mut pointer, mut bytes) = (0, 0);
    cuLibraryGetGlobal(&mut pointer, &mut bytes, library, name.as_ptr())?;
    Ok(pointer)
}

/// Makes the stream `later` wait for all work that is now enqueued on `earlier`.
pub fn join(earlier: usize, later: usize) -> Result {
    const DISABLE_TIMING: c_uint = 2;
    let mut event = 0;
    cuEventCreate(&mut event, DISABLE_TIMING)?;
    let joined = cuEventRecord(event, earlier).and_then(|()| cuStreamWaitEvent(later, event, 0));
    cuEventDestroy_v2(event)?;
    joined
}

/// Records an event on a stream.
pub fn record(event: usize, stream: usize) -> Result {
    cuEventRecord(event, stream)
}

/// Fails if an active capture forbids unsafe calls on the calling thread, and invalidates that
/// capture. On GPUs, allocation, freeing and every synchronizing call do the same.
///
/// A thread in the relaxed capture mode is not restricted.
pub fn as_allocations_do() -> Result {
    let (_, context) = chosen_device()?;
    with_context(context, || {
        let mut event = 0;
        cuEventCreate(&mut event, 2)?;
        let asked = cuEventQuery(event);
        cuEventDestroy_v2(event)?;
        asked
    })
}

/// Allocates memory of the current device.
pub fn allocate(bytes: usize) -> Result<usize> {
    as_allocations_do()?;
    let (_, context) = chosen_device()?;
    let mut pointer = 0;
    with_context(context, || cuMemAlloc_v2(&mut pointer, bytes))?;
    Ok(pointer)
}

/// Frees memory.
pub fn free(pointer: usize) -> Result {
    as_allocations_do()?;
    let (_, context) = chosen_device()?;
    with_context(context, || cuMemFree_v2(pointer))
}
