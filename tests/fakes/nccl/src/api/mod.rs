//! The functions that the library exports.
//!
//! Invariant: arguments that NCCL refuses are refused with its code before a call has an effect.

mod communicators;
mod counters;
mod errors;
mod library;
mod operations;
mod params;
mod resources;
