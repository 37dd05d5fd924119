//! The protocols, generic over the words that they access and the pause of a waiter.

pub mod barrier;
pub mod flag;
pub mod mailbox;
pub mod put_signal;
pub mod sealed;
