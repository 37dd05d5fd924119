//! The state that the PEs of a job share: the control memory, and exchanges among the members of a
//! team.
//!
//! Invariant: a wait for another PE that exceeds the time limit of the settings ends the process.

pub(crate) mod control;
pub(crate) mod exchange;
mod flight;
pub(crate) mod mapping;
mod team;
mod wait;

pub(crate) use control::Control;
pub(crate) use exchange::{record, record_of};
pub(crate) use flight::Flight;
pub(crate) use team::Team;
pub(crate) use wait::wait_for;
