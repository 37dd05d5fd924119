//! NCCL's own names, types and functions, unsafe to call. Public under the feature `raw`.
//!
//! Nothing here checks anything, and nothing decides: which library is bound is [`crate::Nccl`].
//! The structs are those of the newest header that is bound ([`HEADER`]); `layout.rs` says which
//! prefix of each an older library has.
//!
//! The versions beside the functions are those of the first *library* that exports them, found in
//! the vendor's wheels; where a header declared a function later than the library had it, the
//! library counts.

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

/// The version of the header that the structs here follow. It is passed to a newer library, which
/// fills in its own defaults for the rest.
pub const HEADER: crate::Version = crate::Version::new(2, 32, 3);
