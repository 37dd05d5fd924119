//! Waits for other PEs.
//!
//! Invariant: a wait that exceeds the time limit of the settings ends the process.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::control::Control;
use crate::call::undefined;
use crate::settings;

/// Waits until a condition holds; ends the process at the time limit, or when a PE has called
/// global exit.
pub(crate) fn wait_for(control: &Control, mut holds: impl FnMut() -> bool, what: impl FnOnce() -> String) {
    let mut end = None;
    let mut rounds = 0_u32;
    while !holds() {
        rounds += 1;
        if rounds < 50 {
            std::thread::yield_now();
            continue;
        }
        let exit = control.exit.load(Ordering::Acquire);
        if exit != 0 {
            std::process::exit(exit - 1);
        }
        let now = Instant::now();
        let limit = settings::get().wait;
        if now >= *end.get_or_insert(now + limit) {
            undefined(&format!("waited {limit:?} for {}", what()));
        }
        std::thread::sleep(std::time::Duration::from_micros(if rounds < 1000 { 50 } else { 500 }));
    }
}
