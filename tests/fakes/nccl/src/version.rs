//! The emulated version, and the functions of that version.
//!
//! The fields of a version's structs are in `config` and `device_comm`. Invariant: `since.txt`
//! contains every function of NCCL that this library exports, once.

use std::collections::HashMap;
use std::sync::LazyLock;

use peerweave_fake_common::since;

static SINCE: LazyLock<HashMap<&'static str, i32>> = LazyLock::new(|| since(include_str!("../since.txt")));

/// Returns whether any version of NCCL has such a function.
pub(crate) fn known(function: &str) -> bool {
    SINCE.contains_key(function)
}

/// Ends the process if the emulated version lacks the function; the test must hide the function.
#[inline]
pub(crate) fn check(function: &str) {
    let version = crate::settings::get().version;
    if version < crate::settings::NEWEST && SINCE.get(function).is_some_and(|since| *since > version) {
        eprintln!("fake nccl: {function} is newer than the emulated version {version}; remove its name from the library's table");
        std::process::abort();
    }
}
