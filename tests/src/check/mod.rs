//! Checks of operations. They run on the world of any backend.
//!
//! - `conformance.rs`: random cases of collectives, and their comparison with the oracle; teams of
//!   several shapes
//! - `ragged.rs`: cases whose parts differ in length among ranks
//! - `norms.rs`: all-reduces with residual and RMSNorm
//! - `functions.rs`: reductions by a function, and strided all-to-alls
//! - `one_sided.rs`: puts and gets of every type
//! - `views.rs`: ranges, casts, handles by offset and address
//! - `elements.rs`: element types that consist of several values
//! - `waits.rs`: waits for words of every type
//! - `contexts.rs`: independent streams of one-sided operations
//! - `locks.rs`: locks of all PEs
//! - `moe.rs`: dispatch and combine for mixture of experts

pub mod conformance;
pub mod contexts;
pub mod elements;
pub mod functions;
pub mod locks;
pub mod moe;
pub mod norms;
pub mod one_sided;
pub mod ragged;
pub mod views;
pub mod waits;
