//! The backend of the portable API for GPUs: one GPU for each PE, with its symmetric heap.
//!
//! The modules are listed in the README of this crate, under `### Rooms of backend`.
//!
//! Copies run on copy engines, in the order of their stream. Signals, waits, atomics, barriers and
//! operations on single elements are small kernels. The README of `peerweave-stream-kernels` gives
//! the reasons. A stream orders a signal after an earlier put: the put's copy has ended when the
//! signal's kernel starts, and the kernel performs a release at system scope.

mod enqueue;
mod error;
mod hosts;
mod lock;
mod ops;
mod resources;
mod state;
mod streams;
mod teams;
mod world;

pub use streams::{of_cudarc, on_device};
pub use world::{Cuda, CudaOptions, visible_gpus};
