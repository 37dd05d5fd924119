//! Counts the calls that a rule looks at, and says which call fails, sticks, is slow or ends the
//! process.
//!
//! Not in this module: what an operation then does. The counting is `peerweave_fake_common`'s.

use std::time::Duration;

use peerweave_fake_common::{Rule, hit};

use crate::abi::Code;
use crate::settings;

/// Injected effect on a call, on its stream or at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// It never ends.
    pub(crate) stuck: bool,
    /// It waits so long before it begins.
    pub(crate) slow: Duration,
    /// The allocation fails for lack of memory.
    pub(crate) full: bool,
}

impl Effect {
    /// Nothing unusual.
    pub(crate) const NONE: Self = Self { stuck: false, slow: Duration::ZERO, full: false };

    /// Suffers it.
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

/// Counts a call: what its operation shall do, and the code that it returns at once if it shall
/// fail.
pub(crate) fn next(function: &str, pe: Option<i32>) -> (Effect, Option<Code>) {
    let settings = settings::get();
    if hit(&settings.abort, function, pe).is_some() {
        crate::log::undefined(&format!("{function}: an end that the test asked for"));
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
