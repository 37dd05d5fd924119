//! NVSHMEM's device functions for kernels. Wrappers of the functions are compiled with the headers
//! of the user's NVSHMEM installation, and linked with the archive of this installation.
//!
//! `peerweave-nvshmem` initialises NVSHMEM and registers modules. This crate contains no code of
//! NVIDIA. Linked modules contain code of NVIDIA, and are stored only in the cache.

mod library;
mod wrappers;

pub use library::DeviceLibrary;
pub use wrappers::{used_by, wrappers};
