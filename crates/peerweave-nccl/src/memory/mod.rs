//! Memory that NCCL has allocated, memory that is registered with NCCL, and addresses of windows
//! for kernels.

pub(crate) mod mem;
pub(crate) mod pointers;
mod register;
pub(crate) mod registration;
pub(crate) mod window;
