//! Replaces `environment.rs` on systems other than Unix, where NVSHMEM does not exist.

use std::ffi::OsString;

/// Does nothing. NVSHMEM, which would read the variables, exists only on Linux.
pub(crate) fn change(_changes: &[(String, Option<OsString>)]) {}
