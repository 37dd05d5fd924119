//! Values for kernels: device communicators, their requirements, and teams of ranks.

pub(crate) mod device_comm;
pub(crate) mod requirements;
pub(crate) mod team;
