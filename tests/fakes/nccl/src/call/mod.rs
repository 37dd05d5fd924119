//! Handles a call of an exported function: injects faults, logs the call, handles its failure.
//!
//! The bodies of the functions are in module `api`. Invariant: no panic leaves an exported
//! function; a panic ends the process with its message.

mod alone;
pub(crate) mod entry;
mod faults;
mod kinds;
mod values;

pub(crate) use entry::exports;
pub(crate) use faults::take_effect;
