//! One rank's membership, as all handles, graphs, windows and operations share it: its state, its
//! lock, and what calls note in it.
//!
//! Waits for nothing but its lock; how a call or a communicator ends is `comm`.

pub(crate) mod capture;
pub(crate) mod enter_all;
pub(crate) mod membership;
pub(crate) mod registered;
pub(crate) mod spans;
pub(crate) mod state;
pub(crate) mod threads;
