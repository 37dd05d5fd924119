//! Peerweave's backend for the shared memory of one machine: PEs are processes, or threads of one process.
//!
//! No GPU, no network, nothing to install. One memory file holds the symmetric heaps of all PEs; it has no name, is handed
//! from PE 0 to the others over a Unix socket, and is gone when the last process that maps it is, whatever it died of.
//!
//! ```text
//!   backend.rs   the contract of peerweave-core           join.rs, threads.rs   how PEs come together
//!   stream.rs    queues; run on the caller where idle     split.rs, team.rs     teams, whose turn it is
//!   task.rs      operations that can change threads       heap.rs               which parts of the heap are taken
//!   collective/  the collectives      one_sided.rs        point_to_point.rs     wait_until.rs
//!   phase.rs, line.rs   how ranks keep step               wait.rs, liveness.rs, blame.rs  how they wait, give up, and say why
//!   launch.rs    kernels of users, on CPU threads
//!   kernel/      copies and reductions                    layout.rs, segment.rs where everything lies
//! ```
//!
//! # What it promises
//! - Every wait ends: with success, at the deadline, or soon after a PE that is needed has died (within some milliseconds).
//! - Results of a reduction have the same bits on every PE: each element is computed once, or everywhere in the same order.
//! - Nobody ever writes into another process's private memory.
//!
//! # What it does not do
//! It stays on one machine. Kernels run on CPU threads, one thread of a grid at a time: for tests, not for speed.

mod attach;
mod backend;
mod blame;
mod collective;
mod forks;
mod heap;
mod join;
pub(crate) mod kernel;
mod launch;
mod layout;
mod line;
mod liveness;
mod machine;
mod one_sided;
mod phase;
mod point_to_point;
mod process;
mod segment;
mod shared;
mod split;
mod stream;
mod task;
mod team;
mod threads;
mod tuning;
mod wait;
mod wait_until;

pub use backend::Host;
pub use join::HostOptions;
pub use threads::on_threads;
