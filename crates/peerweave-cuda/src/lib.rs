//! Sets up the GPUs of a job for kernels that communicate. Each PE has one GPU, with a symmetric
//! heap and a context for kernels. This crate checks the arguments of launches, and every wait has
//! a deadline.
//!
//! `peerweave-device` has the functions that kernels call. `peerweave-driver` loads and launches
//! modules, and `peerweave-link` links modules.
//!
//! ```text
//!  Gpu        heap + context + modules of one PE's GPU
//!   ├─ Symmetric   memory at the same offset on every PE
//!   ├─ Collectives calls of a team whose PEs map each other's memory
//!   ├─ Team        PEs whose kernels synchronise and call collectives together
//!   └─ Stream      launches of `Kernel`s, waits
//!  CudaError  names the PE that is lost or that did not arrive
//! ```
#![doc = include_str!("../README.md")]
#![allow(clippy::result_large_err, reason = "errors are rare, so their size does not matter")]

mod backend;
mod collective;
mod context;
mod error;
mod gpu;
mod heap;
mod launch;
mod memory;
mod nccl;
mod route;
mod team;

pub use backend::{Cuda, CudaOptions, of_cudarc, on_device, visible_gpus};
pub use collective::{Collectives, CollectivesOptions, Message, RmsNormCall, RmsNormOutput};
pub use error::{CudaError, KernelFailure};
pub use gpu::{Gpu, GpuOptions, Transport};
pub use launch::Stream;
pub use memory::{Local, Symmetric};
pub use peerweave_collectives::Algorithm;
pub use peerweave_core::backend::CollectiveKind;
pub use peerweave_driver::launch::LaunchConfig;
pub use route::{Explanation, Forced, ForcedError, Method, Provider, Query, Route, RouteTable, RoutesError, Timing};
pub use team::Team;

/// Checks at compile time that `Gpu`, `Symmetric`, `Stream`, `Team`, `Cuda` and `Collectives` are
/// `Send` and `Sync`, so that threads can share values of these types.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Gpu>();
    shared::<Symmetric<f32>>();
    shared::<Stream>();
    shared::<Team>();
    shared::<Cuda>();
    shared::<Collectives>();
};
