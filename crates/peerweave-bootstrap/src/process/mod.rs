//! The processes of this machine: their identity, and whether they have ended. For other crates of
//! Peerweave.
//!
//! - `stat.rs`: what `/proc` shows of a process
//! - `watch.rs`: a process that is watched, by a descriptor or by its process ID
//! - `namespace.rs`: whether two processes mean the same process by a process ID

mod namespace;
mod stat;
mod watch;

pub use namespace::pid_namespace;
pub use rustix::process::Pid;
pub use stat::is_stopped;
pub(crate) use stat::{Process, Stat, parent_and_start, parent_of};
pub use watch::Watch;
