//! Creation of communicators: by an id, in one process, by a rendezvous, and from other
//! communicators.

pub(crate) mod builder;
pub(crate) mod init;
pub(crate) mod split;
