//! The newest version, and the functions of each version.
//!
//! Module `settings` has the emulated version. Invariant: `since.txt` contains every function of
//! NCCL that this library exports, once.

use std::collections::HashMap;
use std::sync::LazyLock;

use peerweave_fake_common::since;

/// The version whose interface this library implements.
pub(crate) const NEWEST: i32 = 23203;

static SINCE: LazyLock<HashMap<&'static str, i32>> = LazyLock::new(|| since(include_str!("../../since.txt")));

/// Returns whether any version of NCCL has a function of this name.
pub(crate) fn known(function: &str) -> bool {
    SINCE.contains_key(function)
}

/// Returns whether the function is newer than a version.
#[inline]
pub(crate) fn is_newer(function: &str, version: i32) -> bool {
    version < NEWEST && SINCE.get(function).is_some_and(|since| *since > version)
}
