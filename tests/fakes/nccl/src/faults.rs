//! Counts the calls that a rule looks at, and says which call fails, sticks, is slow or ends in an asynchronous error.
//!
//! What is not here: what an operation then does (`execute`). Invariant: each rule counts alone, over all threads of the process.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::abi::Code;
use crate::call::Arguments;
use crate::settings::{self, Rule, Rules};

/// What a rule wants of an operation that is enqueued.
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

/// How many calls each rule has seen, by the rule's address.
static SEEN: LazyLock<Mutex<HashMap<usize, u64>>> = LazyLock::new(Mutex::default);

fn hit<'a>(rules: &'a Rules, function: &str, rank: Option<i32>) -> Option<&'a Rule> {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut found = None;
    for rule in rules.get(function).into_iter().flatten() {
        if rule.rank.is_some() && rule.rank != rank {
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
pub(crate) fn next(function: &str, arguments: Arguments<'_>) -> (Effect, Option<Code>) {
    let settings = settings::get();
    let comm = arguments.iter().find_map(|(_, argument)| argument.comm());
    let rank = comm.and_then(|comm| comm.peek()).and_then(|comm| comm.rank());
    let code = |rule: &Rule| Code::from_number(i32::try_from(rule.number).unwrap_or(3));
    let effect = Effect {
        stuck: hit(&settings.stuck, function, rank).is_some(),
        async_error: hit(&settings.async_error, function, rank).map(code),
        slow_ms: hit(&settings.slow, function, rank).map_or(0, |rule| u64::try_from(rule.number).unwrap_or(0)),
    };
    (effect, hit(&settings.fail, function, rank).map(code))
}
