//! The loaded library: its functions, version, parameters, log and errors, and the names of calls.
//!
//! This module does not depend on the modules that manage communicators. Its functions take only
//! the raw handle and the name of a communicator.

pub(crate) mod call;
pub(crate) mod debug_log;
pub(crate) mod error;
pub(crate) mod loading;
pub(crate) mod misuse;
pub(crate) mod parameters;
pub(crate) mod properties;
pub(crate) mod unique_id;
pub(crate) mod version;
