//! What the library reports: the log for tests, the log for users, the text of the last error.
//!
//! The callers decide what is an error. Invariant: a text is complete when it is reported; nothing
//! in this folder waits for other ranks.

pub(crate) mod debug;
pub(crate) mod errors;
pub(crate) mod log;

pub(crate) use log::undefined;
