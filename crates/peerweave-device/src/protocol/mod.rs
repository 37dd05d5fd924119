//! The synchronisation protocols, generic over the type of the words and over the pause of a
//! waiter.

pub mod barrier;
pub mod flag;
pub mod mailbox;
pub mod put_signal;
pub mod sealed;
