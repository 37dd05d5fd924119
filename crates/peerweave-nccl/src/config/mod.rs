//! Options of communicators, of single calls, and of encryption.

pub(crate) mod choices;
pub(crate) mod encryption;
pub(crate) mod nvls;
pub(crate) mod of_call;
pub(crate) mod of_communicator;
