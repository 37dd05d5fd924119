//! Memory known to NCCL: allocated by it, registered with it as windows, and the addresses of
//! windows.

pub(crate) mod mem;
pub(crate) mod pointers;
mod register;
pub(crate) mod registration;
pub(crate) mod window;
