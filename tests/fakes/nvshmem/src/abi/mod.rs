//! NVSHMEM's C interface: its structs, status codes, types and versions.
//!
//! Contains no behaviour of the library. Invariant: nothing here is taken from the crate under test.

pub(crate) mod error;
pub(crate) mod structs;
pub(crate) mod types;
pub(crate) mod version;
