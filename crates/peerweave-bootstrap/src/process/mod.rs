//! Identifies the processes of this machine, and detects whether they have ended. Other crates of
//! Peerweave use this module too.
//!
//! - `stat.rs`: the information about a process that `/proc` contains
//! - `watch.rs`: detects the end of a process, by a descriptor or by its process ID
//! - `namespace.rs`: whether two processes are in the same PID namespace

mod namespace;
mod stat;
mod watch;

pub use namespace::pid_namespace;
pub use rustix::process::Pid;
pub use stat::is_stopped;
pub(crate) use stat::{Process, Stat, parent_and_start, parent_of};
pub use watch::Watch;
