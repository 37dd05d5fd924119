//! The entry of every call: the log, injected faults, and the check for calls from host functions.
//! Invariant: a call that is not in the log did not reach the driver.

use core::cell::Cell;
use core::ffi::{c_char, c_int};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::abi::{Code, In, Result};

/// The variables. `PEERWEAVE_FAKE_CUDA_FAIL` and `_LOG` are read once at the first call, the others
/// at `cuInit`.
pub(crate) mod variable {
    pub(crate) const DEVICES: &str = "PEERWEAVE_FAKE_CUDA_DEVICES";
    pub(crate) const MEMORY_BYTES: &str = "PEERWEAVE_FAKE_CUDA_MEMORY_BYTES";
    pub(crate) const VERSION: &str = "PEERWEAVE_FAKE_CUDA_VERSION";
    pub(crate) const FAIL: &str = "PEERWEAVE_FAKE_CUDA_FAIL";
    pub(crate) const MISSING: &str = "PEERWEAVE_FAKE_CUDA_MISSING";
    pub(crate) const LOG: &str = "PEERWEAVE_FAKE_CUDA_LOG";
    pub(crate) const NO_VMM: &str = "PEERWEAVE_FAKE_CUDA_NO_VMM";
    pub(crate) const NO_MULTICAST: &str = "PEERWEAVE_FAKE_CUDA_NO_MULTICAST";
    pub(crate) const NO_POOLS: &str = "PEERWEAVE_FAKE_CUDA_NO_POOLS";
    pub(crate) const NO_PEER: &str = "PEERWEAVE_FAKE_CUDA_NO_PEER";
    pub(crate) const BROKEN_PEER: &str = "PEERWEAVE_FAKE_CUDA_BROKEN_PEER";
    pub(crate) const FABRIC_DIR: &str = "PEERWEAVE_FAKE_CUDA_FABRIC_DIR";
    pub(crate) const TEAM_WAIT_MS: &str = "PEERWEAVE_FAKE_CUDA_TEAM_WAIT_MS";
    pub(crate) const CAPABILITY: &str = "PEERWEAVE_FAKE_CUDA_CAPABILITY";
    pub(crate) const NO_POISON: &str = "PEERWEAVE_FAKE_CUDA_NO_POISON";
}

/// Returns the value of a variable; an empty value counts as unset.
pub(crate) fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns whether a switch is set and not `0`.
pub(crate) fn switch(name: &str) -> bool {
    setting(name).is_some_and(|value| value != "0")
}

/// Parses a decimal number.
///
/// # Panics
/// If the variable is not a number: a test with a misspelled setting must not pass by accident.
pub(crate) fn number(name: &str) -> Option<u64> {
    setting(name).map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value:?}: expected a number")))
}

/// Parses pairs `a-b` separated by commas; `*` means any device.
pub(crate) fn pairs(name: &str) -> Vec<(Option<usize>, Option<usize>)> {
    let side = |text: &str| match text.trim() {
        "*" => None,
        text => Some(text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is neither a device nor *"))),
    };
    setting(name)
        .map(|value| {
            value
                .split(',')
                .map(|pair| {
                    let (from, to) = pair.split_once('-').unwrap_or_else(|| panic!("{name}: {pair:?} is not a pair a-b"));
                    (side(from), side(to))
                })
                .collect()
        })
        .unwrap_or_default()
}

/// Injected outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// The call fails and has no effect.
    Fails(Code),
    /// The call begins after this delay.
    Late(Duration),
}

/// One injected fault: the call of the function, and its outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Order {
    /// The number of the call, from 1; `None` is every call.
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

/// Returns the fault injected into this call.
fn ordered(name: &str) -> Option<Fate> {
    let orders = orders();
    if !ORDERED.load(Ordering::Acquire) {
        return None;
    }
    orders.lock().unwrap_or_else(PoisonError::into_inner).next(name)
}

fn log(line: &str) {
    static LOG: OnceLock<Option<File>> = OnceLock::new();
    let file = LOG.get_or_init(|| {
        setting(variable::LOG).map(|path| {
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(&path)
                .unwrap_or_else(|error| panic!("{}={path}: {error}", variable::LOG))
        })
    });
    if let Some(mut file) = file.as_ref() {
        // One write per line, so that lines of several threads and processes do not mix.
        let _ = file.write_all(format!("{} {line}\n", std::process::id()).as_bytes());
    }
}

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function of the caller that must not call the driver: calls from it get
/// `CUDA_ERROR_NOT_PERMITTED`.
pub(crate) fn as_host_function<T>(run: impl FnOnce() -> T) -> T {
    let before = IN_HOST_FUNCTION.replace(true);
    let value = run();
    IN_HOST_FUNCTION.set(before);
    value
}

/// Wraps the body of every exported function.
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Result) -> c_int {
    log(name);
    let code = match ordered(name) {
        Some(Fate::Fails(code)) => Some(code),
        Some(Fate::Late(time)) => {
            std::thread::sleep(time);
            None
        }
        None => None,
    };
    let result = match code {
        Some(code) => Err(code),
        None if IN_HOST_FUNCTION.get() && !name.starts_with("cuGetError") => Err(Code::NOT_PERMITTED),
        None => body(),
    };
    match result {
        Ok(()) => 0,
        Err(Code(code)) => {
            log(&format!("{name} = {code}"));
            code
        }
    }
}

/// Fake only: replaces the injected faults by those of the text, and counts calls from now.
///
/// Returns 0, or `CUDA_ERROR_INVALID_VALUE` if the text is not `function:nth=code,...`.
#[unsafe(no_mangle)]
extern "C" fn peerweave_fake_cuda_fail(text: In<c_char>) -> c_int {
    let Ok(text) = text.text() else { return Code::INVALID_VALUE.0 };
    match Orders::parse(&text) {
        Ok(new) => {
            let mut orders = orders().lock().unwrap_or_else(PoisonError::into_inner);
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
    fn injected_fault_fails_its_call_and_no_other() {
        let mut orders = Orders::parse("cuMemCreate:2=2, cuMemMap:*=999").expect("well formed");
        assert_eq!(orders.next("cuMemCreate"), None);
        assert_eq!(orders.next("cuMemCreate"), Some(Fate::Fails(Code(2))));
        assert_eq!(orders.next("cuMemCreate"), None);
        assert_eq!(orders.next("cuMemMap"), Some(Fate::Fails(Code(999))));
        assert_eq!(orders.next("cuMemMap"), Some(Fate::Fails(Code(999))));
        assert_eq!(orders.next("cuInit"), None);
        let mut orders = Orders::parse("cuMemMap:1=20ms").expect("well formed");
        assert_eq!(orders.next("cuMemMap"), Some(Fate::Late(Duration::from_millis(20))));
    }

    #[test]
    fn misspelled_fault_is_refused() {
        for text in ["cuMemCreate", "cuMemCreate:2", "cuMemCreate:x=2", "cuMemCreate:1=oom", "cuMemCreate:1=ms"] {
            assert!(Orders::parse(text).is_err(), "{text}");
        }
    }
}
