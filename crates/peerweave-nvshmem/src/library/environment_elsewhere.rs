//! The environment of the process on systems without NVSHMEM.

use std::ffi::OsString;

/// Does nothing. NVSHMEM, which would read the variables, exists only on Linux.
pub(crate) fn change(_changes: &[(String, Option<OsString>)]) {}
