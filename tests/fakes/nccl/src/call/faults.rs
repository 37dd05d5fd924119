//! Counts the calls that match a rule, and returns which call fails, hangs, is slow or causes an
//! asynchronous error.
//!
//! Module `groups` applies the effect. Crate `peerweave_fake_common` counts.

use std::cell::Cell;

use peerweave_fake_common::{Rule, hit};

use super::values::Arguments;
use crate::abi::Code;
use crate::groups::Effect;
use crate::settings;

thread_local! {
    static EFFECT: Cell<Effect> = const { Cell::new(Effect::NONE) };
}

/// Returns the injected effect on the operation that the running call enqueues.
pub(crate) fn take_effect() -> Effect {
    EFFECT.replace(Effect::NONE)
}

/// Sets the injected effect on the operation of the running call.
pub(super) fn set_effect(effect: Effect) {
    EFFECT.set(effect);
}

/// Counts a call. Returns the effect on its operation, and the code that the call returns if it
/// must fail.
pub(super) fn next(function: &str, arguments: Arguments<'_>) -> (Effect, Option<Code>) {
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
