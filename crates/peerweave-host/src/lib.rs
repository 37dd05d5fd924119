//! Peerweave's backend for the shared memory of one machine: PEs are processes, or threads of one process.
//!
//! No GPU, no network, nothing to install. One memory file holds the symmetric heaps of all PEs; it has no name, is handed
//! from PE 0 to the others over a Unix socket, and is gone when the last process that maps it is, whatever it died of.
//!
//! ```text
//!   backend.rs  stream.rs  join.rs  threads.rs     the contract of peerweave-core, streams, how PEs join a job
//!        │
//!      ops/      what runs: collectives, sends, puts, waits, launches, splits of teams
//!        │
//!      sync/     how ranks keep step: teams, steps, waits, which peers are alive, whose failure came first
//!        │
//!      memory/   where everything lies: segments, control words, the heap, memory of other processes
//!      simd/     copies and reductions
//! ```
//!
//! # What it promises
//! - Every wait ends: with success, at the deadline, or soon after a PE that is needed has died (within some milliseconds).
//! - Results of a reduction have the same bits on every PE: each element is computed once, or everywhere in the same order.
//! - Nobody ever writes into another process's private memory.
//!
//! # What it does not do
//! It stays on one machine. Kernels run on CPU threads, one thread of a grid at a time: for tests, not for speed.

mod backend;
mod join;
mod memory;
mod ops;
mod simd;
mod stream;
mod sync;
mod threads;

pub use backend::Host;
pub use join::HostOptions;
pub use threads::on_threads;
