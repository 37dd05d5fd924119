//! Code shared by Peerweave's examples: data and a model to train, and the backend of kernels.
//!
//! The examples themselves contain the communication.
#![forbid(unsafe_code)]

pub mod attention;
pub mod digits;
pub mod digits_model;
pub mod experts;
pub mod kernel_job;
pub mod mlp;

pub use digits::{SplitMix64, share};
