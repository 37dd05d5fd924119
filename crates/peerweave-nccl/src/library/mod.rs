//! The loaded library: its functions, version, parameters, logs and errors, and the names of calls.
//!
//! Of a communicator, this module uses only the raw handle and the name.

pub(crate) mod call;
pub(crate) mod debug_log;
pub(crate) mod error;
pub(crate) mod loading;
pub(crate) mod misuse;
pub(crate) mod parameters;
pub(crate) mod properties;
pub(crate) mod unique_id;
pub(crate) mod version;
