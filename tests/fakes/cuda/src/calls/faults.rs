//! Injected faults: which call of a function fails or is delayed.

use core::ffi::{c_char, c_int};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use super::settings::{setting, variable};
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

/// One injected fault: which calls of a function it affects, and their outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Order {
    /// The number of the call, from 1; `None` means every call.
    nth: Option<u64>,
    fate: Fate,
}

#[derive(Default)]
struct Orders {
    by_name: HashMap<String, Vec<Order>>,
    counts: HashMap<String, u64>,
}

impl Orders {
    /// Parses `name:nth=code,name:*=code`; `100ms` instead of a code delays the call.
    fn parse(text: &str) -> core::result::Result<Orders, String> {
        let mut orders = Orders::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let read = || -> Option<(String, Order)> {
                let (name, rest) = item.split_once(':')?;
                let (nth, code) = rest.split_once('=')?;
                let nth = if nth == "*" { None } else { Some(nth.parse().ok()?) };
                let fate = match code.strip_suffix("ms") {
                    Some(milliseconds) => Fate::Late(Duration::from_millis(milliseconds.parse().ok()?)),
                    None => Fate::Fails(Code(code.parse().ok()?)),
                };
                Some((name.to_owned(), Order { nth, fate }))
            };
            let (name, order) = read().ok_or_else(|| format!("{item:?} does not have the form function:nth=code"))?;
            orders.by_name.entry(name).or_default().push(order);
        }
        Ok(orders)
    }

    fn next(&mut self, name: &str) -> Option<Fate> {
        let orders = self.by_name.get(name)?;
        let count = self.counts.entry(name.to_owned()).or_default();
        *count += 1;
        orders.iter().find(|order| order.nth.is_none_or(|nth| nth == *count)).map(|order| order.fate)
    }
}

static ORDERS: OnceLock<Mutex<Orders>> = OnceLock::new();

/// Whether a fault was ever injected; if not, the lock is not acquired.
static ORDERED: AtomicBool = AtomicBool::new(false);

fn orders() -> &'static Mutex<Orders> {
    ORDERS.get_or_init(|| {
        let text = setting(variable::FAIL).unwrap_or_default();
        let orders = Orders::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", variable::FAIL));
        ORDERED.store(!orders.by_name.is_empty(), Ordering::Release);
        Mutex::new(orders)
    })
}

/// Counts a call of the function, and returns the fault that is injected into the call.
pub(super) fn ordered(name: &str) -> Option<Fate> {
    let orders = orders();
    if !ORDERED.load(Ordering::Acquire) {
        return None;
    }
    lock(orders).next(name)
}

/// Fake only: replaces the injected faults by those of the text, and counts calls from 1 again.
///
/// Returns 0, or `CUDA_ERROR_INVALID_VALUE` if the text is not `function:nth=code,...`.
#[unsafe(no_mangle)]
extern "C" fn peerweave_fake_cuda_fail(text: In<c_char>) -> c_int {
    let Ok(text) = text.text() else { return Code::INVALID_VALUE.0 };
    match Orders::parse(&text) {
        Ok(new) => {
            let mut orders = lock(orders());
            ORDERED.store(true, Ordering::Release);
            *orders = new;
            0
        }
        Err(_) => Code::INVALID_VALUE.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn injected_fault_fails_only_the_chosen_call() {
        let mut orders = Orders::parse("cuMemCreate:2=2, cuMemMap:*=999").expect("the list of faults is valid");
        assert_eq!(orders.next("cuMemCreate"), None);
        assert_eq!(orders.next("cuMemCreate"), Some(Fate::Fails(Code(2))));
        assert_eq!(orders.next("cuMemCreate"), None);
        assert_eq!(orders.next("cuMemMap"), Some(Fate::Fails(Code(999))));
        assert_eq!(orders.next("cuMemMap"), Some(Fate::Fails(Code(999))));
        assert_eq!(orders.next("cuInit"), None);
        let mut orders = Orders::parse("cuMemMap:1=20ms").expect("the list of faults is valid");
        assert_eq!(orders.next("cuMemMap"), Some(Fate::Late(Duration::from_millis(20))));
    }

    #[test]
    fn misspelled_fault_setting_is_refused() {
        for text in ["cuMemCreate", "cuMemCreate:2", "cuMemCreate:x=2", "cuMemCreate:1=oom", "cuMemCreate:1=ms"] {
            assert!(Orders::parse(text).is_err(), "{text}");
        }
    }
}
