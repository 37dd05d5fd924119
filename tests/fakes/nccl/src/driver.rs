//! The CUDA driver of the process, found when it is first needed: streams, capture, contexts and memory.
//!
//! What is not here: any decision. Invariant: every failure of the driver becomes `ncclUnhandledCudaError` with the call's name.

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::ffi::CStr;
use std::sync::LazyLock;

use crate::abi::{Code, Result, fail};

/// A function that a stream runs on the host.
pub(crate) type HostFunction = extern "C" fn(*mut c_void);

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
                        // SAFETY: the driver's function of this name has this signature; null becomes `None`.
                        unsafe { core::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($type),*) -> c_int>>(address) }
                    },)*
                }
            }
        }

        $(
            #[allow(non_snake_case)]
            fn $name($($arg: $type),*) -> Result {
                let Some(function) = FUNCTIONS.as_ref().and_then(|functions| functions.$name) else {
                    let text = "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'";
                    return fail(Code::UnhandledCudaError, text);
                };
                // SAFETY: the pointers that this module passes are to variables of the caller that outlive the call.
                match unsafe { function($($arg),*) } {
                    0 => Ok(()),
                    code => fail(Code::UnhandledCudaError, format!("Cuda failure {code} in {}", stringify!($name))),
                }
            }
        )*
    };
}

functions! {
    fn cuInit(flags: c_uint);
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int);
    fn cuCtxGetCurrent(context: *mut usize);
    fn cuCtxSetCurrent(context: usize);
    fn cuCtxGetDevice(device: *mut c_int);
    fn cuLaunchHostFunc(stream: usize, function: HostFunction, data: *mut c_void);
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
}

static FUNCTIONS: LazyLock<Option<Functions>> = LazyLock::new(|| {
    let open = |flags| {
        let name: &CStr = c"libcuda.so.1";
        // SAFETY: the name is a C string; opening a driver runs its initialisers, which is what the program wants too.
        unsafe { libc::dlopen(name.as_ptr(), flags) }
    };
    let mut library = open(libc::RTLD_NOW | libc::RTLD_NOLOAD);
    if library.is_null() {
        library = open(libc::RTLD_NOW);
    }
    (!library.is_null()).then(|| Functions::load(library))
});

/// The ordinal and the primary context of the device that the calling thread has chosen; device 0 if it has chosen none.
pub(crate) fn current_device() -> Result<(i32, usize)> {
    cuInit(0)?;
    let (mut context, mut device) = (0, 0);
    cuCtxGetCurrent(&mut context)?;
    if context != 0 {
        cuCtxGetDevice(&mut device)?;
        return Ok((device, context));
    }
    device_of_ordinal(0)
}

/// A device and its primary context.
pub(crate) fn device_of_ordinal(ordinal: i32) -> Result<(i32, usize)> {
    cuInit(0)?;
    let (mut device, mut context) = (0, 0);
    cuDeviceGet(&mut device, ordinal)?;
    cuDevicePrimaryCtxRetain(&mut context, device)?;
    Ok((ordinal, context))
}

/// How many devices there are.
pub(crate) fn device_count() -> Result<i32> {
    cuInit(0)?;
    let mut count = 0;
    cuDeviceGetCount(&mut count)?;
    Ok(count)
}

/// Runs something with a context current, and restores what was current before.
pub(crate) fn with_context<T>(context: usize, body: impl FnOnce() -> Result<T>) -> Result<T> {
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

/// Puts a host function into a stream.
pub(crate) fn launch(stream: usize, function: HostFunction, data: *mut c_void) -> Result {
    cuLaunchHostFunc(stream, function, data)
}

/// Whether work for the stream goes into a graph.
pub(crate) fn is_capturing(stream: usize) -> Result<bool> {
    let mut status = 0;
    cuStreamIsCapturing(stream, &mut status)?;
    match status {
        0 => Ok(false),
        1 => Ok(true),
        _ => fail(Code::UnhandledCudaError, "Cuda failure 901 'operation failed due to a previous error during capture'"),
    }
}

/// Makes the graph that the stream is captured into call `destroy` with `data` when it goes away.
pub(crate) fn keep_in_graph(stream: usize, data: *mut c_void, destroy: HostFunction) -> Result {
    let (mut status, mut id, mut graph, mut dependencies, mut count) = (0, 0, 0, 0, 0);
    cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, &mut graph, &mut dependencies, &mut count)?;
    let mut object = 0;
    const NO_DESTRUCTOR_SYNC: c_uint = 1;
    cuUserObjectCreate(&mut object, data, destroy, 1, NO_DESTRUCTOR_SYNC)?;
    const MOVE: c_uint = 1;
    cuGraphRetainUserObject(graph, object, 1, MOVE)
}

/// Makes `later` wait for what `earlier` has now.
pub(crate) fn join(earlier: usize, later: usize) -> Result {
    const DISABLE_TIMING: c_uint = 2;
    let mut event = 0;
    cuEventCreate(&mut event, DISABLE_TIMING)?;
    let joined = cuEventRecord(event, earlier).and_then(|()| cuStreamWaitEvent(later, event, 0));
    cuEventDestroy_v2(event)?;
    joined
}

/// Records an event of the program.
pub(crate) fn record(event: usize, stream: usize) -> Result {
    cuEventRecord(event, stream)
}

/// Fails, and spoils the capture, where another thread captures in the global mode and the calling one is not in the relaxed mode: as
/// allocating, freeing and everything that synchronises do on GPUs.
pub(crate) fn as_allocations_do() -> Result {
    let (_, context) = current_device()?;
    with_context(context, || {
        let mut event = 0;
        cuEventCreate(&mut event, 2)?;
        let asked = cuEventQuery(event);
        cuEventDestroy_v2(event)?;
        asked
    })
}

/// Memory of the current device.
pub(crate) fn allocate(bytes: usize) -> Result<usize> {
    as_allocations_do()?;
    let (_, context) = current_device()?;
    let mut pointer = 0;
    with_context(context, || cuMemAlloc_v2(&mut pointer, bytes))?;
    Ok(pointer)
}

/// Gives memory back.
pub(crate) fn free(pointer: usize) -> Result {
    as_allocations_do()?;
    let (_, context) = current_device()?;
    with_context(context, || cuMemFree_v2(pointer))
}
