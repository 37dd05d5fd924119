//! The emulated version, and the functions of that version.
//!
//! Not in this module: the fields of a version's structs (`config`, `device_comm`). Invariant:
//! `since.txt` names every function of NCCL that this library exports, once.

use std::collections::HashMap;
use std::sync::LazyLock;

use peerweave_fake_common::since;

static SINCE: LazyLock<HashMap<&'static str, i32>> = LazyLock::new(|| since(include_str!("../since.txt")));

/// Returns whether any version of NCCL has such a function.
pub(crate) fn known(function: &str) -> bool {
    SINCE.contains_key(function)
}

/// Ends the process if the version that is pretended does not have the function: it should have
/// been made to look absent.
#[inline]
pub(crate) fn check(function: &str) {
    let version = crate::settings::get().version;
    if version < crate::settings::NEWEST && SINCE.get(function).is_some_and(|since| *since > version) {
        eprintln!(
            "fake nccl: {function} is newer than the pretended version {version}: take its name out of the library's table"
        );
        std::process::abort();
    }
}
