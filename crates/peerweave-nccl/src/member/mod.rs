//! One rank's membership, shared by all handles, graphs, windows and operations: its state, its
//! lock, and the values recorded by calls.
//!
//! It waits only for its lock; `comm` has the ends of calls and communicators.

pub(crate) mod capture;
pub(crate) mod enter_all;
pub(crate) mod membership;
pub(crate) mod registered;
pub(crate) mod spans;
pub(crate) mod state;
pub(crate) mod threads;
