//! The types that a typical program needs: `use peerweave_nccl::prelude::*`.
//!
//! This module exports the crate's own types, the contexts, streams and memory of
//! `peerweave-driver`, and the element types. The crate cudarc is available as
//! [`peerweave_nccl::cudarc`](crate::cudarc).

pub use crate::{
    CollConfig, Communicator, CommunicatorBuilder, Config, CudaContext, CudaSlice, CudaStream, DType, DeviceBuffer,
    DeviceBufferMut, DeviceMemory, Element, Nccl, NcclError, NcclMem, PreMulSum, Rank, ReduceOp, Registration, Result, Signal,
    SignalWait, Switch, UniqueId, Window, WindowKind, bf16, context, f16,
};
