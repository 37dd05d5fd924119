//! The C side: result codes, handles, the pointers that a caller passes, and structures. Invariant:
//! numbers, sizes and offsets are those of `cuda.h` for 64-bit Linux.

mod codes;
mod handles;
mod pointers;
mod structures;

pub(crate) use codes::{CODES, Code, Result};
pub(crate) use handles::{
    CuContext, CuDevice, CuEvent, CuGraph, CuGraphExec, CuGraphNode, CuHost, CuMemHandle, CuPool, CuPtr, CuStream, CuUserObject,
    HostFn, StreamCallback,
};
pub(crate) use pointers::{In, Out};
pub(crate) use structures::{
    AccessDesc, AllocationProp, Copy2d, Handle64, HostNodeParams, LaunchConfig, Location, MulticastProp, PoolProps, Uuid,
};
