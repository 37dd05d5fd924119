//! Peerweave's backend for the shared memory of one machine. The PEs are processes, or threads of
//! one process.
//!
//! The backend needs no GPU and no network. One memory file contains the symmetric heaps of all
//! PEs. The file has no name. PE 0 passes the file to the other PEs over a Unix socket. The system
//! frees the file when the last process that maps the file has ended.
//!
//! ```text
//!   threads.rs  backend/  stream.rs   the `Backend` trait, joining a job, shrinking a job
//!        │
//!      ops/      tasks: collectives, sends, puts, waits, launches, splits of teams
//!        │
//!      sync/     teams, steps, waits, liveness of peers, root causes of failures
//!        │
//!      memory/   segments, control words, the heap
//!      simd/     copies and reductions
//!      platform/ shared memory, processes and processors of the operating system
//! ```
//!
//! # Guarantees
//! - Every wait ends: with success, at its deadline, or within milliseconds after the death of a PE
//!   that the wait needs.
//! - Results of a reduction have the same bits on every PE. Each element is computed once, or in
//!   the same order on every PE.
//! - No PE writes to the private memory of another process.
//!
//! # Limits
//! A job stays on one machine. PEs that are processes need Linux. On other systems, PEs are threads
//! of one process, and [`Host::join`] accepts only jobs of one PE. Kernels run on CPU threads, one
//! thread of a grid at a time. Such kernels are meant for tests, not for speed.

mod backend;
mod memory;
mod ops;
mod platform;
mod simd;
mod stream;
mod sync;
mod threads;

pub use backend::{Host, HostOptions};
pub use threads::on_threads;
