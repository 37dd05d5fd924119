//! NVSHMEM's device functions for kernels: wrappers compiled against the user's own headers, linked with the user's own archive.
//!
//! Starting NVSHMEM and telling it of modules is `peerweave-nvshmem`'s. Nothing of the vendor's is contained here or written anywhere but into the cache.

mod library;
mod wrappers;

pub use library::DeviceLibrary;
pub use wrappers::{units, used_by, wrappers};
