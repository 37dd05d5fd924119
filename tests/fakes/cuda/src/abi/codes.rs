//! The result codes of the driver, with their names and texts.

use core::ffi::c_int;

/// A result code of the driver (`CUresult`) other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) c_int);

/// Result of the body of every function.
pub(crate) type Result<T = ()> = core::result::Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        #[allow(dead_code)] // `cuGetErrorName` also names codes that the fake never returns.
        impl Code {
            $(pub(crate) const $name: Code = Code($value);)*
        }
        /// Every code of the list with its name and its text, for `cuGetErrorName` and
        /// `cuGetErrorString`.
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
