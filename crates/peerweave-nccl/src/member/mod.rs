//! One rank's membership in a communicator: its state, its lock, and records of its calls, such as
//! their number and their streams. All handles, graphs, windows and operations of the communicator
//! share one membership.
//!
//! This module waits only for the lock. `comm` completes calls and ends communicators.

pub(crate) mod capture;
pub(crate) mod enter_all;
pub(crate) mod membership;
pub(crate) mod registered;
pub(crate) mod spans;
pub(crate) mod state;
pub(crate) mod threads;
