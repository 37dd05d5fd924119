//! The backend of the portable API for GPUs: one GPU for each PE, with its symmetric heap.
//!
//! The README of this crate draws the rooms, in a table under `### Rooms of backend`.
//!
//! Copies run on copy engines, in the order of their stream. Signals, waits, atomics, barriers and
//! operations on single elements are small kernels; `peerweave-stream-kernels` has the reasons. The
//! stream orders a signal after a put: the copy has ended when the signal's kernel starts, and the
//! kernel releases at system scope.

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
