//! Kernels: modules loaded from machine code or PTX, and launches with checked arguments.
//!
//! `peerweave-link` creates modules. Invariant: if a check refuses a launch, nothing is enqueued. A
//! module stays loaded while a stream or a graph may still run its kernels.

mod api;
mod arguments;
mod config;
mod kernel;
mod mapped;
mod module;

pub use crate::library::launch_error::LaunchError;
pub use arguments::Arguments;
pub use config::LaunchConfig;
pub use kernel::{LoadedKernel, Parameter};
pub use mapped::MappedWords;
pub use module::{Image, Module};
