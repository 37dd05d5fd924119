//! Counts the calls that match each rule, and finds the rule that applies to a call.
//!
//! Invariant: each rule has its own counter, for all threads of the process.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::{Rule, Rules};

/// Number of calls that each rule has counted, by the rule's address.
static SEEN: LazyLock<Mutex<HashMap<usize, u64>>> = LazyLock::new(Mutex::default);

/// Counts a call of a rank or PE, and returns the rule that applies to the call. `rules` must live
/// as long as the process.
pub fn hit(rules: &'static Rules, function: &str, place: Option<i32>) -> Option<&'static Rule> {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut found = None;
    for rule in rules.get(function).into_iter().flatten() {
        if rule.place.is_some() && rule.place != place {
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
