//! Code shared by Peerweave's tests: programs that run as PEs of every backend, a naive oracle,
//! faults.
//!
//! The scenarios are in `tests/`. Users do not depend on this crate.
//!
//! ```text
//!   harness      main function of a test binary: runs scenarios, or one PE if a variable is set
//!   job, child   a program as PEs: threads, processes, or one PE without communication
//!   sample       elements of every type, and reductions whose results are exact
//!   oracle       every collective over `Vec<Vec<T>>`
//!   memory       buffers of every kind with guards around them
//!   calls        a collective by its name
//!   conformance  random cases of collectives, and their comparison with the oracle
//!   one_sided    puts and gets of every type
//!   views        ranges, casts, handles by offset and address
//!   elements     element types that consist of several values
//!   functions    reductions by a function, and strided all-to-alls
//!   norms        all-reduces with residual and RMSNorm
//!   ragged       cases whose parts differ in length among ranks
//!   death        the death of a PE by a signal
//!   acts         operations that are repeated until a PE dies
//!   leftovers    files, sockets and processes that a job must not leave behind
//!   waits        waits for words of every type
//!   contexts     independent streams of one-sided operations
//!   locks        locks of all PEs
//!   moe          dispatch and combine for mixture of experts
//!   workload     a random mixture of operations
//!   survival     the mixture, continued by the survivors after each failure
//!   needs        requirements of a scenario on the machine
//!   vector_state which halves of vector registers are in use
//! ```

pub mod acts;
pub mod calls;
pub mod child;
pub mod conformance;
pub mod contexts;
pub mod death;
pub mod elements;
pub mod functions;
pub mod harness;
pub mod job;
pub mod leftovers;
pub mod locks;
pub mod memory;
pub mod moe;
pub mod needs;
pub mod norms;
pub mod one_sided;
pub mod oracle;
pub mod ragged;
pub mod sample;
pub mod survival;
pub mod vector_state;
pub mod views;
pub mod waits;
pub mod workload;

pub use harness::main;
pub use job::{Job, Seat};
