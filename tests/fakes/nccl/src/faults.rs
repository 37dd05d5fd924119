//! Counts the calls that match a rule, and returns which call fails, hangs, is slow or causes an
//! asynchronous error.
//!
//! `execute` applies the effect. `peerweave_fake_common` counts.

use peerweave_fake_common::{Rule, hit};

use crate::abi::Code;
use crate::call::Arguments;
use crate::settings;

/// Injected effect on an enqueued operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Whether the operation runs until its communicator is aborted.
    pub(crate) stuck: bool,
    /// The asynchronous error that the communicator reports while the operation does not complete.
    pub(crate) async_error: Option<Code>,
    /// Delay before the call or operation begins, in milliseconds.
    pub(crate) slow_ms: u64,
}

impl Effect {
    /// No injected effect.
    pub(crate) const NONE: Self = Self { stuck: false, async_error: None, slow_ms: 0 };
}

/// Counts a call. Returns the effect on its operation, and the code that the call returns if it
/// must fail.
pub(crate) fn next(function: &str, arguments: Arguments<'_>) -> (Effect, Option<Code>) {
    let settings = settings::get();
    let comm = arguments.iter().find_map(|(_, argument)| argument.comm());
    let rank = comm.and_then(|comm| comm.peek()).and_then(|comm| comm.rank());
    let code = |rule: &Rule| Code::from_number(rule.number.map_or(0, |number| i32::try_from(number).unwrap_or(3)));
    let effect = Effect {
        stuck: hit(&settings.stuck, function, rank).is_some(),
        async_error: hit(&settings.async_error, function, rank).map(code),
        slow_ms: hit(&settings.slow, function, rank)
            .map_or(0, |rule| rule.number.and_then(|number| number.try_into().ok()).unwrap_or(0)),
    };
    (effect, hit(&settings.fail, function, rank).map(code))
}
