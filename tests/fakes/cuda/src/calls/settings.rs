//! Reads the settings, which are environment variables.

use peerweave_fake_common::Variables;

/// The names of the variables, after `PEERWEAVE_FAKE_CUDA_`. `FAIL` and `LOG` are read once, at the
/// first call. The devices, their memory and their peers are read at `cuInit`, and all others at
/// each use.
pub(crate) mod variable {
    pub(crate) const DEVICES: &str = "DEVICES";
    pub(crate) const MEMORY_BYTES: &str = "MEMORY_BYTES";
    pub(crate) const VERSION: &str = "VERSION";
    pub(crate) const FAIL: &str = "FAIL";
    pub(crate) const MISSING: &str = "MISSING";
    pub(crate) const LOG: &str = "LOG";
    pub(crate) const NO_VMM: &str = "NO_VMM";
    pub(crate) const NO_MULTICAST: &str = "NO_MULTICAST";
    pub(crate) const NO_POOLS: &str = "NO_POOLS";
    pub(crate) const NO_PEER: &str = "NO_PEER";
    pub(crate) const BROKEN_PEER: &str = "BROKEN_PEER";
    pub(crate) const FABRIC_DIR: &str = "FABRIC_DIR";
    pub(crate) const TEAM_WAIT_MS: &str = "TEAM_WAIT_MS";
    pub(crate) const DESTROY_MS: &str = "DESTROY_MS";
    pub(crate) const CAPABILITY: &str = "CAPABILITY";
    pub(crate) const NO_POISON: &str = "NO_POISON";
}

/// The variables of this fake.
pub(crate) const VARIABLES: Variables = Variables { fake: "fake cuda", prefix: "PEERWEAVE_FAKE_CUDA_" };

/// Parses pairs `a-b` separated by commas; `*` means any device. An invalid pair ends the process.
pub(crate) fn pairs(name: &str) -> Vec<(Option<usize>, Option<usize>)> {
    let side = |text: &str| (text.trim() != "*").then(|| VARIABLES.parse(name, text));
    let pair = |text: &str| {
        let (from, to) = text.split_once('-').unwrap_or_else(|| VARIABLES.bad(name, text));
        (side(from), side(to))
    };
    VARIABLES.get(name).map(|text| text.split(',').map(pair).collect()).unwrap_or_default()
}
