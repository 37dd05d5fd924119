//! Making communicators: with others that have the same id, of one process, by a rendezvous, and of
//! other communicators.

pub(crate) mod builder;
pub(crate) mod init;
pub(crate) mod split;
