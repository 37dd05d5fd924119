//! Counts the calls that a rule looks at, and says which call fails, sticks, is slow or ends in an
//! asynchronous error.
//!
//! Not in this module: what an operation then does (`execute`). The counting is
//! `peerweave_fake_common`'s.

use peerweave_fake_common::{Rule, hit};

use crate::abi::Code;
use crate::call::Arguments;
use crate::settings;

/// Injected effect on an enqueued operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// It runs until its communicator is aborted.
    pub(crate) stuck: bool,
    /// It does not complete, and the communicator shows this error.
    pub(crate) async_error: Option<Code>,
    /// It waits so long before it begins.
    pub(crate) slow_ms: u64,
}

impl Effect {
    /// Nothing unusual.
    pub(crate) const NONE: Self = Self { stuck: false, async_error: None, slow_ms: 0 };
}

/// Counts a call: what its operation shall do, and the code that it returns at once if it shall
/// fail.
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
