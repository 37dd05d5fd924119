//! NVSHMEM's C interface: its structs, status codes, types and versions.
//!
//! Contains no behaviour of the library. Invariant: nothing in this folder comes from the crate
//! under test.

mod error;
pub(crate) mod structs;
pub(crate) mod types;
pub(crate) mod version;

pub(crate) use error::{Code, Fail, Result, fail, invalid};
