//! The work that a stream runs and a graph replays, and the objects that work uses.

pub(crate) mod event;
pub(crate) mod kernel;
pub(crate) mod piece;
mod ptx;
pub(crate) mod shared_event;
pub(crate) mod user_object;
