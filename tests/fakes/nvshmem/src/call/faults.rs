//! Determines from the rules whether a call fails, hangs, is slow or ends the process.
//!
//! The operations apply the effects. Crate `peerweave_fake_common` counts the calls that match a
//! rule.

use std::time::Duration;

use peerweave_fake_common::{Rule, hit};

use super::log::undefined;
use crate::abi::Code;
use crate::settings;

/// Injected effect on a call, in stream order or immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Whether the call never ends.
    pub(crate) stuck: bool,
    /// Delay before the call begins.
    pub(crate) slow: Duration,
    /// Whether the allocation fails because the heap is full.
    pub(crate) full: bool,
}

impl Effect {
    /// No injected effect.
    pub(crate) const NONE: Self = Self { stuck: false, slow: Duration::ZERO, full: false };

    /// Applies the effect.
    pub(crate) fn suffer(self) {
        if !self.slow.is_zero() {
            std::thread::sleep(self.slow);
        }
        if self.stuck {
            loop {
                std::thread::park();
            }
        }
    }
}

/// Counts a call. Returns the effect on the operation of the call, and the code that the call
/// returns if it must fail.
pub(crate) fn next(function: &str, pe: Option<i32>) -> (Effect, Option<Code>) {
    let settings = settings::get();
    if hit(&settings.abort, function, pe).is_some() {
        undefined(&format!("{function}: an injected end of the process"));
    }
    let slow = hit(&settings.slow, function, pe).and_then(|rule| rule.number).and_then(|number| number.try_into().ok());
    let effect = Effect {
        stuck: hit(&settings.stuck, function, pe).is_some(),
        slow: Duration::from_millis(slow.unwrap_or(0)),
        full: hit(&settings.full, function, pe).is_some(),
    };
    let code = |rule: &Rule| Code(rule.number.and_then(|number| number.try_into().ok()).unwrap_or(Code::INTERNAL.0));
    (effect, hit(&settings.fail, function, pe).map(code))
}
