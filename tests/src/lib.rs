//! Code shared by Peerweave's tests: programs that run as PEs of every backend, checks of every
//! operation, a naive oracle, faults.
//!
//! The tests themselves are in `tests/`. Users do not depend on this crate.
//!
//! A folder uses only folders below it:
//!
//! ```text
//!   repeat   operations that are repeated until a PE dies
//!   check    checks of operations on any backend
//!   data     values, buffers, calls by name, and expected results
//!   run      programs as PEs, and what they leave behind
//! ```

pub mod check;
pub mod data;
pub mod repeat;
pub mod run;

pub use run::harness::main;
pub use run::job::{Job, Seat};
