//! Frames, and the connections that carry them.

pub mod proto;
pub(crate) mod socket;
