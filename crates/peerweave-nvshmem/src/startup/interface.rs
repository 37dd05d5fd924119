//! Checks the network interface by which the PEs will connect, before NVSHMEM uses the interface.
//!
//! NVSHMEM's variable is a list of names. Each name is a prefix unless the list starts with `=`. A
//! list that starts with `^` excludes its names. If no interface matches, NVSHMEM only prints a
//! message to standard error.

use crate::error::PreflightError;
use crate::library::Settings;

/// The variable that selects the interface.
const VARIABLE: &str = "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME";

/// Checks that this machine has a network interface that the settings select.
pub(crate) fn check(settings: &Settings) -> Result<(), PreflightError> {
    let Some(asked) = settings.effective(VARIABLE).filter(|asked| !asked.is_empty()) else { return Ok(()) };
    // If the operating system cannot list interfaces, the check succeeds.
    let Ok(all) = peerweave_bootstrap::interface::interfaces() else { return Ok(()) };
    let mut there: Vec<String> = all.into_iter().map(|one| one.name).collect();
    there.dedup();
    if matches(&asked, &there) { Ok(()) } else { Err(PreflightError::Interface { asked, there: there.join(", ") }) }
}

fn matches(asked: &str, there: &[String]) -> bool {
    let (names, excluded) = match asked.strip_prefix('^') {
        Some(names) => (names, true),
        None => (asked, false),
    };
    let (names, exact) = match names.strip_prefix('=') {
        Some(names) => (names, true),
        None => (names, false),
    };
    let named = |one: &String| names.split(',').any(|name| if exact { one == name } else { one.starts_with(name) });
    there.iter().any(|one| named(one) != excluded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_list_matches_prefixes_and_exact_names() {
        let there = ["lo", "eth0", "ib0"].map(str::to_owned);
        for right in ["eth0", "eth", "nope,ib", "=eth0", "=nope,ib0", "^eth", "^=eth0"] {
            assert!(matches(right, &there), "{right}");
        }
        for wrong in ["wlan", "=eth", "^lo,eth,ib", "nope,none"] {
            assert!(!matches(wrong, &there), "{wrong}");
        }
    }
}
