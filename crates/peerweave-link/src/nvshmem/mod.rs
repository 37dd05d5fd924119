//! NVSHMEM's device functions for kernels: wrappers compiled against the user's own headers, linked
//! with the user's own archive.
//!
//! `peerweave-nvshmem` initialises NVSHMEM and registers modules. This crate contains no code of
//! NVIDIA, and writes such code only to the cache.

mod library;
mod wrappers;

pub use library::DeviceLibrary;
pub use wrappers::{used_by, wrappers};
