//! Plain data shared by the host and kernels: PEs, ranks, element types, reductions, the geometry
//! of the symmetric heap.
//!
//! This crate neither communicates nor allocates, and does not depend on an operating system. Types
//! passed to kernels are `repr(C)`.
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

mod boolean;
mod compare;
mod context;
mod dtype;
mod element;
mod fp8;
mod geometry;
mod ids;
mod launch;
pub mod nvshmem;
mod reduce;
mod strides;
mod team_shape;
mod views;

pub use boolean::Bool;
pub use compare::{Compare, SignalOp};
pub use context::{FailureKind, KernelContext, KernelOp, KernelStatus, PeerEntry, TeamEntry};
pub use dtype::DType;
pub use element::{AtomicElement, AtomicInteger, Element, Integer, Number, Scalar, SingleElement, WaitElement, derived};
pub use fp8::{F8E4M3, F8E5M2};
pub use geometry::{HeapGeometry, SignalWord, SymOffset};
pub use half::{bf16, f16};
pub use ids::{Pe, Rank};
pub use launch::{ArgVisitor, Dim3, KernelArg, KernelArgs, KernelTeam};
pub use reduce::ReduceOp;
pub use strides::Strides;
pub use team_shape::TeamShape;
pub use views::{DeviceSlice, Plain, SymSlice};
