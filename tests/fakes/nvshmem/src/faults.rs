//! Counts the calls that a rule looks at, and says which call fails, sticks, is slow or ends the process.
//!
//! What is not here: what an operation then does. Invariant: each rule counts alone, over all threads of the process.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use crate::abi::Code;
use crate::settings::{self, Rule, Rules};

/// What a rule wants of what a call does, on its stream or at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// It never ends.
    pub(crate) stuck: bool,
    /// It waits so long before it begins.
    pub(crate) slow: Duration,
    /// There is no room for what it allocates.
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

/// How many calls each rule has seen, by the rule's address.
static SEEN: LazyLock<Mutex<HashMap<usize, u64>>> = LazyLock::new(Mutex::default);

fn hit<'a>(rules: &'a Rules, function: &str, pe: Option<i32>) -> Option<&'a Rule> {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut found = None;
    for rule in rules.get(function).into_iter().flatten() {
        if rule.pe.is_some() && rule.pe != pe {
            continue;
        }
        let count = seen.entry(std::ptr::from_ref(rule).addr()).or_default();
        *count += 1;
        if rule.nth.is_none_or(|nth| nth == *count) {
            found = Some(rule);
        }
    }
    found
}

/// Counts a call: what its operation shall do, and the code that it returns at once if it shall fail.
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
