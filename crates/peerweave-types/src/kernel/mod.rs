//! Data that the host and kernels share: the context of a kernel, its arguments, views of memory.

mod context;
mod launch;
mod views;

pub use context::{FailureKind, KernelContext, KernelOp, KernelStatus, PeerEntry, TeamEntry};
pub use launch::{ArgVisitor, Dim3, KernelArg, KernelArgs, KernelTeam};
pub use views::{DeviceSlice, Plain, SymSlice};
