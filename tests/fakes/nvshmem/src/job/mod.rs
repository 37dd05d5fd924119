//! The job to which this process belongs as a PE: its symmetric memory, its teams, its pending
//! transfers, and its work on streams.
//!
//! Module `startup` starts and ends the job. Invariant: there is at most one job.

pub(crate) mod counters;
pub(crate) mod memory;
pub(crate) mod pending;
pub(crate) mod region;
pub(crate) mod state;
pub(crate) mod stream;
pub(crate) mod teams;
pub(crate) mod world;

pub(crate) use state::live;
pub(crate) use stream::on_stream;
pub(crate) use world::World;
