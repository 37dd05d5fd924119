//! Creation of communicators: with an id, in one process, with a rendezvous, and from other
//! communicators.

pub(crate) mod builder;
pub(crate) mod init;
pub(crate) mod split;
