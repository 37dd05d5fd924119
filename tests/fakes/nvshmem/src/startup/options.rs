//! NVSHMEM's own variables.
//!
//! The settings of the fake are in module `settings`. Invariant: the variables are read once.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::abi::{Result, invalid};

/// NVSHMEM's own variables. They are read once: when an id is created or when NVSHMEM starts,
/// whichever is first.
static OPTIONS: LazyLock<HashMap<String, String>> =
    LazyLock::new(|| std::env::vars().filter(|(name, _)| name.starts_with("NVSHMEM_")).collect());

/// Reads the variables at the first call.
pub(super) fn read() {
    LazyLock::force(&OPTIONS);
}

/// Returns the value of a variable; an empty value counts as unset.
pub(super) fn option(name: &str) -> Option<String> {
    OPTIONS.get(name).filter(|text| !text.is_empty()).cloned()
}

/// Parses a number of bytes with a unit, as NVSHMEM does.
pub(super) fn bytes_of(name: &str) -> Result<Option<u64>> {
    let Some(text) = option(name) else { return Ok(None) };
    let split = text.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[split..].trim().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" => 10,
        "M" | "MB" => 20,
        "G" | "GB" => 30,
        "T" | "TB" => 40,
        _ => return invalid(format!("{name}={text}: expected a number with an optional unit B, K, M, G or T")),
    };
    let number: Option<u64> = text[..split].parse().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .map(Some)
        .map_or_else(|| invalid(format!("{name}={text}: expected a number of bytes")), Ok)
}

/// Returns whether a switch is on: set, and not `0`, `n`, `no` or `false`.
pub(super) fn is_on(name: &str) -> bool {
    option(name).is_some_and(|text| !matches!(text.as_str(), "0" | "n" | "no" | "false"))
}

/// Returns a digest of the settings that determine the algorithms of collectives and the number of
/// teams.
pub(super) fn algorithms() -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    const NAMES: [&str; 7] =
        ["MAX_TEAMS", "DISABLE_NCCL", "REDUCE_ALGO", "BCAST_ALGO", "FCOLLECT_ALGO", "REDUCESCATTER_ALGO", "MAX_CTAS"];
    let mut hasher = DefaultHasher::new();
    NAMES.iter().for_each(|name| option(&format!("NVSHMEM_{name}")).hash(&mut hasher));
    hasher.finish()
}
