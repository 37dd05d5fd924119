//! How PEs synchronize with each other and wait for each other, and how they detect that another PE
//! has died, has left the job or has failed.

pub(crate) mod abort;
pub(crate) mod liveness;
pub(crate) mod peers;
pub(crate) mod process;
pub(crate) mod root_cause;
pub(crate) mod step;
pub(crate) mod target;
pub(crate) mod team;
pub(crate) mod wait;
