//! What the environment asks of the library, read once.
//!
//! What is not here: counting the calls (`faults`); what NVSHMEM's own variables say is read when it starts (`init`). Invariant: a setting
//! that cannot be understood ends the process with its text, so that a test never passes because its fault was misspelled.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use crate::version::Version;

/// One rule of `FAIL`, `STUCK`, `ABORT` or `SLOW`.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// Only calls of this PE count.
    pub(crate) pe: Option<i32>,
    /// Which call, counted from 1; `None` for every one.
    pub(crate) nth: Option<u64>,
    /// A code or milliseconds.
    pub(crate) number: Option<i64>,
}

/// The rules of each function.
pub(crate) type Rules = HashMap<String, Vec<Rule>>;

/// Everything that the environment says.
pub(crate) struct Settings {
    pub(crate) version: Version,
    pub(crate) fail: Rules,
    pub(crate) stuck: Rules,
    pub(crate) abort: Rules,
    pub(crate) slow: Rules,
    pub(crate) full: Rules,
    pub(crate) any_rule: bool,
    /// How long anything waits for another PE before the process ends.
    pub(crate) wait: Duration,
    /// How long a non-blocking transfer may be left undone.
    pub(crate) nbi_delay: Duration,
    /// How long what the host puts takes over the network.
    pub(crate) network_delay: Duration,
    pub(crate) heap_bytes: Option<u64>,
    pub(crate) share_gpu: bool,
    pub(crate) multicast: bool,
    pub(crate) atomics: bool,
    pub(crate) any_module: bool,
    /// What is for a stream only counts.
    pub(crate) noop: bool,
    pub(crate) directory: Option<String>,
    pub(crate) log: Option<String>,
}

static SETTINGS: LazyLock<Settings> = LazyLock::new(read);

/// The settings of this process.
#[inline]
pub(crate) fn get() -> &'static Settings {
    &SETTINGS
}

fn variable(name: &str) -> Option<String> {
    std::env::var(format!("PEERWEAVE_FAKE_NVSHMEM_{name}")).ok().filter(|text| !text.is_empty())
}

fn bad(name: &str, text: &str) -> ! {
    eprintln!("fake nvshmem: PEERWEAVE_FAKE_NVSHMEM_{name}={text} cannot be understood");
    std::process::abort();
}

fn flag(name: &str) -> bool {
    match variable(name).as_deref() {
        None | Some("0") => false,
        Some("1") => true,
        Some(text) => bad(name, text),
    }
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> T {
    text.trim().parse().unwrap_or_else(|_| bad(name, text))
}

/// Reads `function[@pe][:nth][=number],...`.
fn rules(name: &str) -> Rules {
    let mut all = Rules::new();
    for text in variable(name).unwrap_or_default().split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let (left, value) = text.split_once('=').map_or((text, None), |(left, value)| (left, Some(value)));
        let (left, nth) = left.split_once(':').map_or((left, None), |(left, nth)| (left, Some(nth)));
        let (function, pe) = left.split_once('@').map_or((left, None), |(left, pe)| (left, Some(pe)));
        if !crate::version::known(function) {
            bad(name, text);
        }
        let nth = nth.filter(|nth| *nth != "*").map(|nth| number(name, nth));
        let pe = pe.map(|pe| number(name, pe));
        let number = value.map(|value| number(name, value));
        all.entry(function.to_owned()).or_default().push(Rule { pe, nth, number });
    }
    all
}

fn read() -> Settings {
    let (fail, stuck, abort, slow, full) = (rules("FAIL"), rules("STUCK"), rules("ABORT"), rules("SLOW"), rules("FULL"));
    let milliseconds = |name, or| Duration::from_millis(variable(name).map_or(or, |text| number(name, &text)));
    Settings {
        version: variable("VERSION").map_or(crate::version::NEWEST, |text| number("VERSION", &text)),
        any_rule: [&fail, &stuck, &abort, &slow, &full].iter().any(|rules| !rules.is_empty()),
        fail,
        stuck,
        abort,
        slow,
        full,
        wait: milliseconds("WAIT_MS", 30_000),
        nbi_delay: milliseconds("NBI_DELAY_MS", 2),
        network_delay: milliseconds("NETWORK_DELAY_MS", 2),
        heap_bytes: variable("HEAP_BYTES").map(|text| number("HEAP_BYTES", &text)),
        share_gpu: flag("SHARE_GPU"),
        multicast: flag("MULTICAST"),
        atomics: flag("ATOMICS"),
        any_module: flag("ANY_MODULE"),
        noop: flag("NOOP"),
        directory: variable("DIR"),
        log: variable("LOG"),
    }
}
