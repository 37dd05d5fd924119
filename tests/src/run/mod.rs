//! Runs programs as PEs, and finds what they leave behind.
//!
//! - `harness.rs`: main function of a test binary: runs scenarios, or one PE if a variable is set
//! - `job.rs`, `child.rs`: a program as PEs: threads, processes, or one PE without communication
//! - `needs.rs`: requirements of a scenario on the machine
//! - `death.rs`: the death of a PE by a signal
//! - `leftovers.rs`: files, sockets and processes that a job must not leave behind
//! - `vector_state.rs`: which halves of vector registers are in use
//! - `allocations.rs`: an allocator that counts, for test binaries that include the file

pub mod child;
pub mod death;
pub mod harness;
pub mod job;
pub mod leftovers;
pub mod needs;
pub mod vector_state;
