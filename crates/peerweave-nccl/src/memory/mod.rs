//! Memory known to NCCL: allocated by it, registered with it as windows, and the addresses of
//! windows.

pub(crate) mod mem;
pub(crate) mod pointers;
pub(crate) mod window;
