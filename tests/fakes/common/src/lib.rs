//! Code shared by the fakes: settings, faults, the log; and for the fake NCCL and the fake NVSHMEM,
//! versions and calls of the CUDA driver.
//!
//! Contains nothing of a vendor's interface; each fake defines its own.
#![allow(non_snake_case, reason = "the driver's names")]
#![cfg(target_os = "linux")]

pub mod driver;
mod faults;
mod log;
mod random;
mod settings;
mod since;

pub use faults::hit;
pub use log::{Log, call_line};
pub use random::random_word;
pub use settings::{Rule, Rules, Variables, parse_rules};
pub use since::since;
