//! NCCL's own names, types and functions, which are unsafe to call. Public under the feature `raw`.
//!
//! These declarations make no checks. [`crate::Nccl`] selects the library. The structs have the
//! layout of the newest supported header ([`HEADER`]). An older library uses only a prefix of a
//! struct. `layout.rs` lists the fields of each prefix.
//!
//! The version of a function is the version of the first *library* in NVIDIA's wheels that exports
//! the function. The headers may declare the function only in a later version.

mod api;
mod constants;
mod layout;
mod requirements;
mod types;
mod values;

pub use api::Api;
pub use constants::*;
pub(crate) use layout::Versioned;
pub use layout::{Field, Layout, device_comm_len_bytes, layout_of, layouts};
pub use requirements::*;
pub use types::*;
pub use values::values;

/// Version of NCCL's header to which the declared structs correspond. This crate passes this
/// version to a newer library, which uses its own defaults for fields that later versions added.
pub const HEADER: crate::Version = crate::Version::new(2, 32, 3);
