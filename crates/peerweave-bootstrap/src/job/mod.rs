//! The position of a process in its job, and what the process needs to find the other PEs.
//!
//! - `position.rs`: the position of the process
//! - `env/`: reads and writes the variables of each launcher
//! - `interface.rs`: network interfaces of this machine
//! - `host.rs`: groups PEs by host
//! - `endpoint.rs`: the address of a rendezvous
//! - `token.rs`: the secret of a job, and random numbers

pub(crate) mod endpoint;
pub mod env;
pub(crate) mod host;
pub mod interface;
mod position;
pub(crate) mod token;

pub use position::{Job, Launcher, Served};
