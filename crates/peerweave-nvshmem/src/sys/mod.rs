//! NVSHMEM's names, types and functions, which are unsafe to call. This module is public under the
//! feature `raw`.
//!
//! The functions make no checks; [`crate::Nvshmem`] loads the library. Three groups are not
//! declared: data symbols, the `nvshmemid_` entry points (which belong to NVSHMEM's device
//! library), and functions that the headers define inline. No library exports the inline functions
//! `nvshmem_init`, `nvshmemx_init_attr` and `nvshmem_finalize`.
//!
//! The version stated for a function is the first *library* version that exports the function. Only
//! the versions 3.3.24, 3.4.5, 3.6.5 and 3.8.0 were compared.

mod api;
mod families;
mod layout;
mod types;

pub use api::Api;
pub use families::*;
pub use layout::{Fact, facts};
pub use types::*;

/// The version of NVSHMEM's headers from which the struct declarations were taken.
pub const HEADER: crate::Version = crate::Version::new(3, 8, 0);
