//! The library that is loaded: its functions, version, parameters and logs, what it says of an
//! error, and the names that calls have.
//!
//! Knows of no communicator but its raw handle and its name.

pub(crate) mod call;
pub(crate) mod debug_log;
pub(crate) mod error;
pub(crate) mod loading;
pub(crate) mod misuse;
pub(crate) mod parameters;
pub(crate) mod properties;
pub(crate) mod unique_id;
pub(crate) mod version;
