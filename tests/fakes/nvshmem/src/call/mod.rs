//! The wrapper of every exported function: injects faults, logs the call, handles a failure.
//!
//! Other modules have the bodies of the functions. Invariant: no panic leaves an exported function;
//! a panic ends the process with its message.

pub(crate) mod entry;
pub(crate) mod faults;
mod log;
mod outcome;
mod running;
mod values;

pub(crate) use entry::{export, exports, rules};
pub(crate) use log::{complain, undefined};
pub(crate) use outcome::{code, or_abort};
pub(crate) use running::{function, set_own_pe, take_effect};
