//! Data that the host and kernels share: the context of a kernel, the arguments of a kernel, and
//! views of memory.

mod context;
mod launch;
mod views;

pub use context::{FailureKind, KernelContext, KernelOp, KernelStatus, PeerEntry, TeamEntry};
pub use launch::{ArgVisitor, Dim3, KernelArg, KernelArgs, KernelTeam};
pub use views::{DeviceSlice, Plain, SymSlice};
