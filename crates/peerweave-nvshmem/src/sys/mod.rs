//! Unsafe declarations of NVSHMEM's types, constants and functions. This module is public under the
//! feature `raw`.
//!
//! [`crate::Nvshmem`] loads the library. The functions make no checks. Three groups of NVSHMEM's
//! symbols are not declared: data, the `nvshmemid_` entry points (which belong to NVSHMEM's device
//! library), and functions that the headers define inline. The inline functions include
//! `nvshmem_init`, `nvshmemx_init_attr` and `nvshmem_finalize`, which no library exports.
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
