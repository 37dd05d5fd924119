//! Injected faults: which call of a function fails or is delayed. Crate `peerweave_fake_common`
//! counts the calls.

use core::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use peerweave_fake_common::{Rule, Rules, hit, parse_rules};

use super::settings::{VARIABLES, variable};
use crate::abi::{Code, In};
use crate::sync::lock;

/// Injected outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fate {
    /// The call fails and has no effect.
    Fails(Code),
    /// The call begins after this delay.
    Late(Duration),
}

/// The rules that apply now. They live as long as the process, because [`hit`] counts the calls of
/// each rule by its address.
static RULES: LazyLock<Mutex<&'static Rules>> = LazyLock::new(|| {
    let text = VARIABLES.get(variable::FAIL).unwrap_or_default();
    let rules = parse(&text).unwrap_or_else(|invalid| VARIABLES.bad(variable::FAIL, invalid));
    ANY_RULE.store(!rules.is_empty(), Ordering::Release);
    Mutex::new(rules)
});

/// Whether a fault was ever injected; if not, the lock is not acquired.
static ANY_RULE: AtomicBool = AtomicBool::new(false);

/// Parses `function:nth=code,...`; `100ms` instead of a code delays the call. Returns an invalid
/// rule as the error.
fn parse(text: &str) -> core::result::Result<&'static Rules, &str> {
    let rules = parse_rules(text, |_| true)?;
    match rules.values().flatten().all(|rule| rule.place.is_none() && fate(rule).is_some()) {
        true => Ok(Box::leak(Box::new(rules))),
        false => Err(text),
    }
}

fn fate(rule: &Rule) -> Option<Fate> {
    let code = || rule.number.and_then(|number| number.try_into().ok());
    rule.delay.map(Fate::Late).or_else(|| code().map(|code| Fate::Fails(Code(code))))
}

/// Counts a call of the function, and returns the fault that is injected into the call.
pub(super) fn ordered(name: &str) -> Option<Fate> {
    LazyLock::force(&RULES);
    if !ANY_RULE.load(Ordering::Acquire) {
        return None;
    }
    let rules = *lock(&RULES);
    hit(rules, name, None).and_then(fate)
}

/// Fake only: replaces the injected faults by those of the text, and counts calls from 1 again.
///
/// Returns 0, or `CUDA_ERROR_INVALID_VALUE` if the text is not `function:nth=code,...`.
#[unsafe(no_mangle)]
extern "C" fn peerweave_fake_cuda_fail(text: In<c_char>) -> c_int {
    let Ok(text) = text.text() else { return Code::INVALID_VALUE.0 };
    match parse(&text) {
        Ok(new) => {
            let mut rules = lock(&RULES);
            ANY_RULE.store(true, Ordering::Release);
            *rules = new;
            0
        }
        Err(_) => Code::INVALID_VALUE.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_setting_makes_only_the_selected_calls_fail() {
        let rules = parse("cuMemCreate:2=2, cuMemMap:*=999").expect("the list of faults is valid");
        let next = |name: &str| hit(rules, name, None).and_then(fate);
        assert_eq!(next("cuMemCreate"), None);
        assert_eq!(next("cuMemCreate"), Some(Fate::Fails(Code(2))));
        assert_eq!(next("cuMemCreate"), None);
        assert_eq!(next("cuMemMap"), Some(Fate::Fails(Code(999))));
        assert_eq!(next("cuMemMap"), Some(Fate::Fails(Code(999))));
        assert_eq!(next("cuInit"), None);
        let rules = parse("cuMemMap:1=20ms").expect("the list of faults is valid");
        assert_eq!(hit(rules, "cuMemMap", None).and_then(fate), Some(Fate::Late(Duration::from_millis(20))));
    }

    #[test]
    fn misspelled_fault_setting_is_refused() {
        for text in
            ["cuMemCreate", "cuMemCreate:2", "cuMemCreate:x=2", "cuMemCreate:1=oom", "cuMemCreate:1=ms", "cuMemCreate@0=2"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
