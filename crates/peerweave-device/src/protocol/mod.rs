//! The synchronisation protocols. They are generic over `Word`, a word in memory, and over `Pause`,
//! the pause that a waiter makes between two polls.

pub mod barrier;
pub mod flag;
pub mod mailbox;
pub mod put_signal;
pub mod sealed;
