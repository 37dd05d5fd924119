//! Functions of the library as a whole, of devices and of contexts.

pub(super) mod context;
pub(super) mod device;
pub(super) mod library;
pub(super) mod peer;
