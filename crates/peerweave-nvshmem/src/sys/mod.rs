//! NVSHMEM's own names, types and functions, which are unsafe to call. Public under the feature
//! `raw`.
//!
//! These declarations make no checks; [`crate::Nvshmem`] selects the library. Not declared are data
//! symbols, the `nvshmemid_` entry points (they belong to NVSHMEM's device library), and functions
//! that headers define inline: no library exports `nvshmem_init`, `nvshmemx_init_attr` and
//! `nvshmem_finalize`.
//!
//! The version of each function is that of the first *library* that exports it, among 3.3.24,
//! 3.4.5, 3.6.5 and 3.8.0.

mod api;
mod families;
mod layout;
mod types;

pub use api::Api;
pub use families::*;
pub use layout::{Fact, facts};
pub use types::*;

/// The version of the header from which the structs are declared.
pub const HEADER: crate::Version = crate::Version::new(3, 8, 0);
