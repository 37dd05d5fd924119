//! Plain data that the host and kernels share: PEs, ranks, element types, reductions, and the
//! geometry of the symmetric heap.
//!
//! This crate neither communicates nor allocates memory, and does not depend on an operating
//! system. Types that are passed to kernels are `repr(C)`.
//!
//! ```
//! use peerweave_types::{DType, Element, Pe};
//!
//! assert_eq!(f32::DTYPE, DType::F32);
//! assert_eq!(DType::F32.size_bytes(), 4);
//! assert_eq!(Pe::new(3).to_string(), "PE 3");
//! ```
#![no_std]
#![forbid(unsafe_op_in_unsafe_fn)]

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod compare;
mod elements;
mod job;
mod kernel;
pub mod nvshmem;

pub use compare::{Compare, SignalOp};
pub use elements::{
    AtomicElement, AtomicInteger, Bool, DType, Element, F8E4M3, F8E5M2, Integer, Number, ReduceOp, Scalar, SingleElement,
    WaitElement, derived,
};
pub use half::{bf16, f16};
pub use job::{HeapGeometry, Pe, Rank, SignalWord, Strides, SymOffset, TeamShape};
pub use kernel::{
    ArgVisitor, DeviceSlice, Dim3, FailureKind, KernelArg, KernelArgs, KernelContext, KernelOp, KernelStatus, KernelTeam,
    PeerEntry, Plain, SymSlice, TeamEntry,
};
