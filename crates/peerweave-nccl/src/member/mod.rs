//! One rank's membership, shared by all handles, graphs, windows and operations: its state, its
//! lock, and the values recorded by calls.
//!
//! This module waits only for that lock; `comm` completes calls and ends communicators.

pub(crate) mod capture;
pub(crate) mod enter_all;
pub(crate) mod membership;
pub(crate) mod registered;
pub(crate) mod spans;
pub(crate) mod state;
pub(crate) mod threads;
