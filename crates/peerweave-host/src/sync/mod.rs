//! Synchronization of the ranks of a team, waits of a PE, and detection of the state of other PEs.

pub(crate) mod abort;
pub(crate) mod liveness;
pub(crate) mod peers;
pub(crate) mod process;
pub(crate) mod root_cause;
pub(crate) mod step;
pub(crate) mod target;
pub(crate) mod team;
pub(crate) mod wait;
