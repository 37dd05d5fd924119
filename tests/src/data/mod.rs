//! Values, buffers, calls by name, and the results that are expected.
//!
//! - `sample.rs`: elements of every type, and reductions whose results are exact
//! - `memory.rs`: buffers of every kind with guards around them
//! - `calls.rs`: a collective by its name
//! - `oracle.rs`: every collective over `Vec<Vec<T>>`

pub mod calls;
pub mod memory;
pub mod oracle;
pub mod sample;
