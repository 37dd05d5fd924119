//! What the environment asks of the library, read once.
//!
//! What is not here: counting the calls (`faults`). Invariant: a setting that cannot be understood ends the process with its text,
//! so that a test never passes because its fault was misspelled.

use std::collections::HashMap;
use std::sync::LazyLock;

/// One rule of `FAIL`, `STUCK`, `ASYNC_ERROR` or `SLOW`: a function, perhaps a rank, which call, and a number.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// Only calls on communicators of this rank count.
    pub(crate) rank: Option<i32>,
    /// Which call, counted from 1; `None` for every one.
    pub(crate) nth: Option<u64>,
    /// A code or milliseconds.
    pub(crate) number: i64,
}

/// The rules of each function.
pub(crate) type Rules = HashMap<String, Vec<Rule>>;

/// Whether collectives do anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noop {
    /// They do.
    Off,
    /// On a blocking communicator nothing, on another one a thread is started.
    Threads,
    /// As `Threads`, but where a thread would be started, the next question is answered as if one still ran.
    Questions,
}

/// Everything that the environment says.
pub(crate) struct Settings {
    pub(crate) version: i32,
    pub(crate) fail: Rules,
    pub(crate) stuck: Rules,
    pub(crate) async_error: Rules,
    pub(crate) slow: Rules,
    /// Some rule exists.
    pub(crate) any_rule: bool,
    pub(crate) init_stuck: Option<Option<i32>>,
    pub(crate) init_slow_ms: u64,
    pub(crate) null_window: bool,
    pub(crate) multimem: bool,
    pub(crate) noop: Noop,
    pub(crate) connect: bool,
    pub(crate) death_is_error: bool,
    pub(crate) log: Option<String>,
}

/// The version whose interface this library has.
pub(crate) const NEWEST: i32 = 23203;

static SETTINGS: LazyLock<Settings> = LazyLock::new(read);

/// The settings of this process.
#[inline]
pub(crate) fn get() -> &'static Settings {
    &SETTINGS
}

fn variable(name: &str) -> Option<String> {
    std::env::var(format!("PEERWEAVE_FAKE_NCCL_{name}")).ok().filter(|text| !text.is_empty())
}

fn bad(name: &str, text: &str) -> ! {
    eprintln!("fake nccl: PEERWEAVE_FAKE_NCCL_{name}={text} cannot be understood");
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

/// Reads `function[@rank][:nth][=number],...`.
fn rules(name: &str) -> Rules {
    let mut all = Rules::new();
    for text in variable(name).unwrap_or_default().split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let (left, value) = text.split_once('=').map_or((text, None), |(left, value)| (left, Some(value)));
        let (left, nth) = left.split_once(':').map_or((left, None), |(left, nth)| (left, Some(nth)));
        let (function, rank) = left.split_once('@').map_or((left, None), |(left, rank)| (left, Some(rank)));
        if !crate::version::known(function) {
            bad(name, text);
        }
        let nth = nth.filter(|nth| *nth != "*").map(|nth| number(name, nth));
        let rank = rank.map(|rank| number(name, rank));
        let number = value.map_or(0, |value| number(name, value));
        all.entry(function.to_owned()).or_default().push(Rule { rank, nth, number });
    }
    all
}

fn read() -> Settings {
    let (fail, stuck, async_error, slow) = (rules("FAIL"), rules("STUCK"), rules("ASYNC_ERROR"), rules("SLOW"));
    Settings {
        version: variable("VERSION").map_or(NEWEST, |text| number("VERSION", &text)),
        any_rule: [&fail, &stuck, &async_error, &slow].iter().any(|rules| !rules.is_empty()),
        fail,
        stuck,
        async_error,
        slow,
        init_stuck: variable("INIT_STUCK").map(|text| (text != "*").then(|| number("INIT_STUCK", &text))),
        init_slow_ms: variable("INIT_SLOW").map_or(0, |text| number("INIT_SLOW", &text)),
        null_window: flag("NULL_WINDOW"),
        multimem: flag("MULTIMEM"),
        noop: match variable("NOOP").as_deref() {
            None | Some("0") => Noop::Off,
            Some("1") => Noop::Threads,
            Some("questions") => Noop::Questions,
            Some(text) => bad("NOOP", text),
        },
        connect: flag("CONNECT"),
        death_is_error: match variable("DEATH").as_deref() {
            None | Some("hang") => false,
            Some("error") => true,
            Some(text) => bad("DEATH", text),
        },
        log: variable("LOG"),
    }
}
