//! Options of communicators and of single calls, and the settings of encryption.

pub(crate) mod choices;
pub(crate) mod encryption;
pub(crate) mod nvls;
pub(crate) mod of_call;
pub(crate) mod of_communicator;
