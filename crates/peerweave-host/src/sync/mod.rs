//! Synchronization of the ranks of a team, the waits of a PE, and its knowledge of the other PEs.

pub(crate) mod abort;
pub(crate) mod liveness;
pub(crate) mod peers;
pub(crate) mod process;
pub(crate) mod root_cause;
pub(crate) mod step;
pub(crate) mod target;
pub(crate) mod team;
pub(crate) mod wait;
