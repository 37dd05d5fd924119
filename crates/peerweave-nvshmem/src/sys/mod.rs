//! NVSHMEM's own names, types and functions, unsafe to call. Public under the feature `raw`.
//!
//! Nothing here checks anything, and nothing decides: which library is bound is [`crate::Nvshmem`].
//! Not bound are data symbols, the `nvshmemid_` entry points (they belong to NVSHMEM's device
//! library), and what headers define inline: `nvshmem_init`, `nvshmemx_init_attr` and
//! `nvshmem_finalize` are exported by no library.
//!
//! The versions beside the functions are those of the first *library* that exports them, among
//! 3.3.24, 3.4.5, 3.6.5 and 3.8.0.

mod api;
mod families;
mod layout;
mod types;

pub use api::Api;
pub use families::*;
pub use layout::{Fact, facts};
pub use types::*;

/// The version of the header that the structs here follow.
pub const HEADER: crate::Version = crate::Version::new(3, 8, 0);
