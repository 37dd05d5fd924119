//! The entry of every call: settings, the log, injected faults, and the check for calls from host
//! functions. Invariant: a call that is not in the log did not reach the driver.

mod call;
mod exports;
mod faults;
pub(crate) mod settings;

pub(crate) use call::{as_host_function, call};
pub(crate) use exports::{Symbol, exports, functions};
