//! What kernels are given: device communicators, what they require, teams of ranks.

pub(crate) mod device_comm;
pub(crate) mod requirements;
pub(crate) mod team;
