//! What the fake NCCL and the fake NVSHMEM have in common: reading settings, counting faults, the
//! log, versions, the driver below.
//!
//! What is not here: anything of a vendor's interface, which each fake has to itself.
#![allow(non_snake_case, reason = "the driver's names")]
#![cfg(target_os = "linux")]

pub mod driver;
mod faults;
mod log;
mod settings;
mod since;

pub use faults::hit;
pub use log::{Log, call_line};
pub use settings::{Rule, Rules, Variables};
pub use since::since;
