//! Reads the settings, which are environment variables.

/// The names of the variables. `PEERWEAVE_FAKE_CUDA_FAIL` and `_LOG` are read once, at the first
/// call. The devices, their memory and their peers are read at `cuInit`, and all others at each
/// use.
pub(crate) mod variable {
    pub(crate) const DEVICES: &str = "PEERWEAVE_FAKE_CUDA_DEVICES";
    pub(crate) const MEMORY_BYTES: &str = "PEERWEAVE_FAKE_CUDA_MEMORY_BYTES";
    pub(crate) const VERSION: &str = "PEERWEAVE_FAKE_CUDA_VERSION";
    pub(crate) const FAIL: &str = "PEERWEAVE_FAKE_CUDA_FAIL";
    pub(crate) const MISSING: &str = "PEERWEAVE_FAKE_CUDA_MISSING";
    pub(crate) const LOG: &str = "PEERWEAVE_FAKE_CUDA_LOG";
    pub(crate) const NO_VMM: &str = "PEERWEAVE_FAKE_CUDA_NO_VMM";
    pub(crate) const NO_MULTICAST: &str = "PEERWEAVE_FAKE_CUDA_NO_MULTICAST";
    pub(crate) const NO_POOLS: &str = "PEERWEAVE_FAKE_CUDA_NO_POOLS";
    pub(crate) const NO_PEER: &str = "PEERWEAVE_FAKE_CUDA_NO_PEER";
    pub(crate) const BROKEN_PEER: &str = "PEERWEAVE_FAKE_CUDA_BROKEN_PEER";
    pub(crate) const FABRIC_DIR: &str = "PEERWEAVE_FAKE_CUDA_FABRIC_DIR";
    pub(crate) const TEAM_WAIT_MS: &str = "PEERWEAVE_FAKE_CUDA_TEAM_WAIT_MS";
    pub(crate) const DESTROY_MS: &str = "PEERWEAVE_FAKE_CUDA_DESTROY_MS";
    pub(crate) const CAPABILITY: &str = "PEERWEAVE_FAKE_CUDA_CAPABILITY";
    pub(crate) const NO_POISON: &str = "PEERWEAVE_FAKE_CUDA_NO_POISON";
}

/// Returns the value of a variable; an empty value counts as unset.
pub(crate) fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns whether a switch is set and not `0`.
pub(crate) fn switch(name: &str) -> bool {
    setting(name).is_some_and(|value| value != "0")
}

/// Parses a decimal number; returns `None` if the variable is not set.
///
/// # Panics
/// If the value is not a number: a test with a misspelled setting must not pass by accident.
pub(crate) fn number(name: &str) -> Option<u64> {
    setting(name).map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value:?}: expected a number")))
}

/// Parses pairs `a-b` separated by commas; `*` means any device.
pub(crate) fn pairs(name: &str) -> Vec<(Option<usize>, Option<usize>)> {
    let side = |text: &str| match text.trim() {
        "*" => None,
        text => Some(text.parse().unwrap_or_else(|_| panic!("{name}: found {text:?}, expected the number of a device or *"))),
    };
    setting(name)
        .map(|value| {
            value
                .split(',')
                .map(|pair| {
                    let (from, to) =
                        pair.split_once('-').unwrap_or_else(|| panic!("{name}: found {pair:?}, expected a pair a-b"));
                    (side(from), side(to))
                })
                .collect()
        })
        .unwrap_or_default()
}
