//! The parts of `bench` that are the same for every backend: options, plan, operations, inputs,
//! records.
//!
//! ```text
//!   args.rs       options
//!   backends.rs   options that each backend supports
//!   config.rs     the plan that follows from the options
//!   op.rs         sizes, counts, bandwidths
//!   geometry.rs   layout of the buffers
//!   pattern.rs    inputs with exact results
//!   types.rs      element types from their codes
//!   binding.rs    binding of PEs to processors
//!   record.rs     messages from a PE to the command
//! ```

pub mod args;
mod backends;
pub mod binding;
pub mod config;
pub mod geometry;
pub mod op;
pub mod pattern;
pub mod record;
pub(crate) mod types;
