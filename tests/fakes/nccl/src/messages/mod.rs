//! Messages between ranks, in one process or several; and how ranks find each other.
//!
//! Module `comm` handles puts and the death of processes. Invariant: messages from one rank to
//! another are received in the order in which they were sent.

pub(crate) mod bootstrap;
mod join;
pub(crate) mod mailbox;
mod members;
pub(crate) mod numbers;
pub(crate) mod post;
pub(crate) mod wire;

pub(crate) use mailbox::{Bytes, Channel, Slot};
pub(crate) use members::Members;
