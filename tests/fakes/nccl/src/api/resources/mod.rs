//! Memory, windows, and what kernels need: teams and device communicators.

mod device_comm;
pub(super) mod memory;
mod pointers;
mod teams;
mod windows;
