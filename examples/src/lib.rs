//! Code shared by Peerweave's examples: data and a model to train, and the backend of kernels.
//!
//! The communication is in the examples themselves, numbered, in `examples/`.
#![forbid(unsafe_code)]

pub mod digits;
pub mod digits_model;
pub mod kernel_job;

pub use digits::share;
