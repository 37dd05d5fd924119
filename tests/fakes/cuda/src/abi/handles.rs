//! The types of handles, addresses and callbacks.

use core::ffi::{c_int, c_void};

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
