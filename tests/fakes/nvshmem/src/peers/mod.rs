//! What the PEs of a job share: the control memory, and exchanges among the members of a team.
//!
//! Invariant: every wait for another PE ends within the limit of the settings, by ending the
//! process.

pub(crate) mod control;
pub(crate) mod exchange;
pub(crate) mod flight;
pub(crate) mod mapping;
pub(crate) mod team;
pub(crate) mod wait;
