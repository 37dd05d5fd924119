//! Memory that NCCL knows: allocated by it, registered with it as windows, and the addresses that
//! windows have.

pub(crate) mod mem;
pub(crate) mod pointers;
pub(crate) mod window;
