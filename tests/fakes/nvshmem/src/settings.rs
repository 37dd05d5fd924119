//! The settings of the library, read once from the environment.
//!
//! Module `call` applies the rules. Module `startup` reads NVSHMEM's own variables at the start.
//! Invariant: an invalid setting is printed and ends the process, so that a test cannot pass
//! because its fault was misspelled.

use std::sync::LazyLock;
use std::time::Duration;

use peerweave_fake_common::{Rules, Variables};

use crate::abi::version::{self, Version};

/// All settings of the environment.
pub(crate) struct Settings {
    pub(crate) version: Version,
    pub(crate) fail: Rules,
    pub(crate) stuck: Rules,
    pub(crate) abort: Rules,
    pub(crate) slow: Rules,
    pub(crate) full: Rules,
    pub(crate) any_rule: bool,
    /// Time limit of any wait for another PE; at the limit the process ends.
    pub(crate) wait: Duration,
    /// Maximum delay of a non-blocking transfer.
    pub(crate) nbi_delay: Duration,
    /// Maximum delay of puts of the host over the network.
    pub(crate) network_delay: Duration,
    pub(crate) heap_bytes: Option<u64>,
    pub(crate) share_gpu: bool,
    pub(crate) multicast: bool,
    pub(crate) atomics: bool,
    pub(crate) any_module: bool,
    /// Whether stream-ordered calls are only counted.
    pub(crate) noop: bool,
    pub(crate) directory: Option<String>,
    pub(crate) log: Option<String>,
}

static SETTINGS: LazyLock<Settings> = LazyLock::new(read);

/// Returns the settings of this process.
#[inline]
pub(crate) fn get() -> &'static Settings {
    &SETTINGS
}

const VARIABLES: Variables = Variables { fake: "fake nvshmem", prefix: "PEERWEAVE_FAKE_NVSHMEM_" };

fn variable(name: &str) -> Option<String> {
    VARIABLES.get(name)
}

fn read() -> Settings {
    let rules = |name| VARIABLES.rules(name, version::known);
    let flag = |name| VARIABLES.flag(name);
    let (fail, stuck, abort, slow, full) = (rules("FAIL"), rules("STUCK"), rules("ABORT"), rules("SLOW"), rules("FULL"));
    let milliseconds = |name, or| Duration::from_millis(VARIABLES.number(name).unwrap_or(or));
    Settings {
        version: VARIABLES.number("VERSION").unwrap_or(version::NEWEST),
        any_rule: [&fail, &stuck, &abort, &slow, &full].iter().any(|rules| !rules.is_empty()),
        fail,
        stuck,
        abort,
        slow,
        full,
        wait: milliseconds("WAIT_MS", 30_000),
        nbi_delay: milliseconds("NBI_DELAY_MS", 2),
        network_delay: milliseconds("NETWORK_DELAY_MS", 2),
        heap_bytes: VARIABLES.number("HEAP_BYTES"),
        share_gpu: flag("SHARE_GPU"),
        multicast: flag("MULTICAST"),
        atomics: flag("ATOMICS"),
        any_module: flag("ANY_MODULE"),
        noop: flag("NOOP"),
        directory: variable("DIR"),
        log: variable("LOG"),
    }
}
