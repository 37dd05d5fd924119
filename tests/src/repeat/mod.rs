//! Operations that PEs repeat until a PE dies.
//!
//! - `acts.rs`: an operation by its name
//! - `workload.rs`: a random mixture of operations
//! - `survival.rs`: the mixture, continued by the survivors after each failure

pub mod acts;
pub mod survival;
pub mod workload;
