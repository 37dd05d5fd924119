//! The settings of the library, read once from the environment.
//!
//! Module `call` counts the calls that match a rule. Invariant: an invalid setting is printed and
//! ends the process, so that a test cannot pass because its fault was misspelled.

use std::sync::LazyLock;

use peerweave_fake_common::{Rules, Variables};

use crate::abi::version::{self, NEWEST};

/// Whether collectives have an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noop {
    /// Collectives have their effects.
    Off,
    /// On a blocking communicator collectives do nothing; on a non-blocking one they start a
    /// thread.
    Threads,
    /// Like `Threads`, but no thread is started. Instead, the next query reports that the call is
    /// in progress.
    Questions,
}

/// All settings of the environment.
pub(crate) struct Settings {
    pub(crate) version: i32,
    pub(crate) fail: Rules,
    pub(crate) stuck: Rules,
    pub(crate) async_error: Rules,
    pub(crate) slow: Rules,
    /// Whether any rule exists.
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

static SETTINGS: LazyLock<Settings> = LazyLock::new(read);

/// Returns the settings of this process.
#[inline]
pub(crate) fn get() -> &'static Settings {
    &SETTINGS
}

const VARIABLES: Variables = Variables { fake: "fake nccl", prefix: "PEERWEAVE_FAKE_NCCL_" };

fn variable(name: &str) -> Option<String> {
    VARIABLES.get(name)
}

fn read() -> Settings {
    let rules = |name| VARIABLES.rules(name, version::known);
    let flag = |name| VARIABLES.flag(name);
    let (fail, stuck, async_error, slow) = (rules("FAIL"), rules("STUCK"), rules("ASYNC_ERROR"), rules("SLOW"));
    Settings {
        version: VARIABLES.number("VERSION").unwrap_or(NEWEST),
        any_rule: [&fail, &stuck, &async_error, &slow].iter().any(|rules| !rules.is_empty()),
        fail,
        stuck,
        async_error,
        slow,
        init_stuck: variable("INIT_STUCK").map(|text| (text != "*").then(|| VARIABLES.parse("INIT_STUCK", &text))),
        init_slow_ms: VARIABLES.number("INIT_SLOW").unwrap_or(0),
        null_window: flag("NULL_WINDOW"),
        multimem: flag("MULTIMEM"),
        noop: match variable("NOOP").as_deref() {
            None | Some("0") => Noop::Off,
            Some("1") => Noop::Threads,
            Some("questions") => Noop::Questions,
            Some(text) => VARIABLES.bad("NOOP", text),
        },
        connect: flag("CONNECT"),
        death_is_error: match variable("DEATH").as_deref() {
            None | Some("hang") => false,
            Some("error") => true,
            Some(text) => VARIABLES.bad("DEATH", text),
        },
        log: variable("LOG"),
    }
}
