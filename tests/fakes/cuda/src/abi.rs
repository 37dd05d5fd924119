//! Defines the C side: result codes, handles, structures and the pointers that a caller passes.
//! Other modules implement the functions. Invariant: sizes and offsets are those of `cuda.h` for
//! 64-bit Linux (checked below).

use core::ffi::{c_int, c_void};

/// A result code of the driver (`CUresult`) other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) c_int);

/// Result of the body of every function.
pub(crate) type Result<T = ()> = core::result::Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        #[allow(dead_code)] // The whole list of the driver is named by `cuGetErrorName`.
        impl Code {
            $(pub(crate) const $name: Code = Code($value);)*
        }
        /// Every code with its name and its text, for `cuGetErrorName` and `cuGetErrorString`.
        pub(crate) const CODES: &[(c_int, &core::ffi::CStr, &core::ffi::CStr)] = &[
            $(($value, cstr(concat!("CUDA_ERROR_", stringify!($name), "\0")), cstr(concat!($text, "\0"))),)*
        ];
    };
}

const fn cstr(text: &'static str) -> &'static core::ffi::CStr {
    match core::ffi::CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a text of the table of codes contains a NUL"),
    }
}

codes! {
    INVALID_VALUE = 1, "invalid argument";
    OUT_OF_MEMORY = 2, "out of memory";
    NOT_INITIALIZED = 3, "initialization error";
    DEINITIALIZED = 4, "driver shutting down";
    STUB_LIBRARY = 34, "CUDA driver is a stub library";
    NO_DEVICE = 100, "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "invalid device ordinal";
    INVALID_IMAGE = 200, "device kernel image is invalid";
    INVALID_CONTEXT = 201, "invalid device context";
    MAP_FAILED = 205, "mapping of buffer object failed";
    UNMAP_FAILED = 206, "unmapping of buffer object failed";
    ALREADY_MAPPED = 208, "resource already mapped";
    NO_BINARY_FOR_GPU = 209, "no kernel image is available for execution on the device";
    NOT_MAPPED = 211, "resource not mapped";
    ECC_UNCORRECTABLE = 214, "uncorrectable ECC error encountered";
    UNSUPPORTED_LIMIT = 215, "limit is not supported on this architecture";
    PEER_ACCESS_UNSUPPORTED = 217, "peer access is not supported between these two devices";
    INVALID_PTX = 218, "a PTX JIT compilation failed";
    NVLINK_UNCORRECTABLE = 220, "uncorrectable NVLink error detected during the execution";
    FILE_NOT_FOUND = 301, "file not found";
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, "shared object symbol not found";
    OPERATING_SYSTEM = 304, "OS call failed or operation not supported on this OS";
    INVALID_HANDLE = 400, "invalid resource handle";
    ILLEGAL_STATE = 401, "the operation cannot be performed in the present state";
    NOT_FOUND = 500, "named symbol not found";
    NOT_READY = 600, "device not ready";
    ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, "too many resources requested for launch";
    LAUNCH_TIMEOUT = 702, "the launch timed out and was terminated";
    PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, "peer access has not been enabled";
    PRIMARY_CONTEXT_ACTIVE = 708, "cannot set while device is active in this process";
    CONTEXT_IS_DESTROYED = 709, "context is destroyed";
    TOO_MANY_PEERS = 711, "peer mapping resources exhausted";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, "pointer does not correspond to a registered memory region";
    MISALIGNED_ADDRESS = 716, "misaligned address";
    LAUNCH_FAILED = 719, "unspecified launch failure";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, "too many blocks in cooperative launch";
    NOT_PERMITTED = 800, "operation not permitted";
    NOT_SUPPORTED = 801, "operation not supported";
    SYSTEM_NOT_READY = 802, "system not yet initialized";
    SYSTEM_DRIVER_MISMATCH = 803, "system has unsupported display driver / cuda driver combination";
    STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous error during capture";
    STREAM_CAPTURE_MERGE = 902, "operation would result in a merge of separate capture sequences";
    STREAM_CAPTURE_UNMATCHED = 903, "capture was not ended in the same stream as it began";
    STREAM_CAPTURE_UNJOINED = 904, "capturing stream has unjoined work";
    STREAM_CAPTURE_ISOLATION = 905, "dependency created on uncaptured work in another stream";
    STREAM_CAPTURE_IMPLICIT = 906, "operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, "operation not permitted on an event last recorded in a capturing stream";
    STREAM_CAPTURE_WRONG_THREAD = 908, "attempt to terminate a thread-local capture sequence from another thread";
    TIMEOUT = 909, "wait operation timed out";
    GRAPH_EXEC_UPDATE_FAILURE = 910, "the graph update was not performed because it included changes which violated constraints";
    EXTERNAL_DEVICE = 911, "an async error has occurred in external entity outside of CUDA";
    UNKNOWN = 999, "unknown error";
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) struct $name(pub(crate) usize);
    )*};
}

handles! {
    /// `CUcontext`.
    CuContext;
    /// `CUstream`; 0 and 1 are the legacy stream, 2 is the per-thread default stream.
    CuStream;
    /// `CUevent`.
    CuEvent;
    /// `CUgraph`.
    CuGraph;
    /// `CUgraphExec`.
    CuGraphExec;
    /// `CUgraphNode`.
    CuGraphNode;
    /// `CUuserObject`.
    CuUserObject;
    /// `CUmemoryPool`.
    CuPool;
    /// A pointer to bytes of the caller, stored as a number.
    CuHost;
}

/// `CUdeviceptr`.
pub(crate) type CuPtr = u64;
/// `CUdevice`.
pub(crate) type CuDevice = c_int;
/// `CUmemGenericAllocationHandle`.
pub(crate) type CuMemHandle = u64;
/// `CUhostFn`.
pub(crate) type HostFn = Option<unsafe extern "C" fn(*mut c_void)>;
/// `CUstreamCallback`.
pub(crate) type StreamCallback = Option<unsafe extern "C" fn(CuStream, c_int, *mut c_void)>;

/// A pointer to which a function of the driver writes.
///
/// # Invariants
/// Only a C caller creates it, and guarantees by the driver's interface that it is null or valid
/// for one `T`.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the value; returns an error if the pointer is null.
    pub(crate) fn set(&self, value: T) -> Result {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so by the invariant valid for a write of one T.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the value unless the pointer is null.
    pub(crate) fn set_if_wanted(&self, value: T) {
        if !self.is_null() {
            let _ = self.set(value);
        }
    }

    /// Reads the caller's value of an in-out argument.
    pub(crate) fn get(&self) -> Result<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// Returns whether the caller passed null.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Returns an error if the pointer is null, before any work is done.
    pub(crate) fn required(&self) -> Result {
        if self.is_null() { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    /// Writes values up to the capacity of the caller's array.
    pub(crate) fn set_array(&self, capacity: usize, values: &[T]) -> Result
    where
        T: Copy,
    {
        self.required()?;
        for (index, value) in values.iter().take(capacity).enumerate() {
            // SAFETY: the C caller gave an array of `capacity` elements, and `index` is below that.
            unsafe { self.0.add(index).write_unaligned(*value) };
        }
        Ok(())
    }

    /// Returns an output that ignores what is set.
    pub(crate) fn nowhere() -> Out<T> {
        Out(core::ptr::null_mut())
    }

    /// Creates an output from an element of a caller's array of outputs.
    pub(crate) fn from_array_element(pointer: *mut T) -> Out<T> {
        Out(pointer)
    }

    /// Returns the same address, for functions whose output type depends on another argument.
    pub(crate) fn cast<U>(&self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// A pointer from which a function of the driver reads.
///
/// # Invariants
/// Only a C caller creates it, and guarantees by the driver's interface that it is null or valid
/// for the elements it counts.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads the value; returns an error if the pointer is null.
    pub(crate) fn get(&self) -> Result<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so by the invariant valid for a read of one T.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads `count` values.
    pub(crate) fn array(&self, count: usize) -> Result<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by the invariant the caller's array has `count` elements.
        Ok((0..count).map(|index| unsafe { self.0.add(index).read_unaligned() }).collect())
    }

    /// Returns the pointer as a number, for arguments that can be a pointer or a number.
    pub(crate) fn address(&self) -> usize {
        self.0 as usize
    }

    /// Creates an input from a pointer inside another argument.
    pub(crate) fn from_address(pointer: *const T) -> In<T> {
        In(pointer)
    }

    /// Returns the same address, for functions whose type of input depends on another argument.
    pub(crate) fn cast<U>(&self) -> In<U> {
        In(self.0.cast())
    }
}

impl In<core::ffi::c_char> {
    /// Returns the text at the pointer.
    pub(crate) fn text(&self) -> Result<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by the driver's interface a `const char*` argument is a NUL-terminated string.
        Ok(unsafe { core::ffi::CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{align_of, offset_of, size_of};
    use cudarc::driver::sys;

    #[test]
    fn structures_have_the_layout_of_the_vendors_header() {
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
    }
}
