//! Groups of calls: collects the operations of a group, launches them, and runs them.
//!
//! Module `api` checks arguments. Invariant: the operations of a communicator run in the order of
//! their launches.

mod collective;
pub(crate) mod exchange;
mod execute;
pub(crate) mod group;
mod jobs;
mod launch;
mod one_sided;
mod stop;
mod work;

pub(crate) use jobs::Job;
pub(crate) use launch::Operation;
pub(crate) use work::{Collective, Effect, Item, Kind, OneSided, Work};
