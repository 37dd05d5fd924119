//! A call of an exported function: injects faults, logs it, handles its failure.
//!
//! The bodies of the functions are in the rooms above. Invariant: no panic leaves an exported
//! function; a panic ends the process with its message.

pub(crate) mod entry;
pub(crate) mod faults;
pub(crate) mod log;
pub(crate) mod outcome;
pub(crate) mod running;
pub(crate) mod values;

pub(crate) use entry::{export, exports, rules};
pub(crate) use outcome::{code, or_abort};
pub(crate) use running::{function, take_effect};
