//! The running call of each thread, and the PE of the process.
//!
//! Module `job` sets the PE. Invariant: an injected effect applies once, to the operation of its
//! call or at the end of the call.

use std::cell::Cell;
use std::sync::atomic::{AtomicI32, Ordering};

use super::faults::Effect;

thread_local! {
    static EFFECT: Cell<Effect> = const { Cell::new(Effect::NONE) };
    static FUNCTION: Cell<&'static str> = const { Cell::new("") };
}

/// The number of this PE; -1 while this process is not a PE.
static PE: AtomicI32 = AtomicI32::new(-1);

/// Takes the injected effect on the operation of the running call, so that the effect applies only
/// once.
pub(crate) fn take_effect() -> Effect {
    EFFECT.replace(Effect::NONE)
}

/// Sets the injected effect on the operation of the running call.
pub(super) fn set_effect(effect: Effect) {
    EFFECT.set(effect);
}

/// Returns the exported function that this thread runs.
pub(crate) fn function() -> &'static str {
    FUNCTION.get()
}

/// Sets the exported function that this thread runs, and returns the previous one.
pub(super) fn set_function(name: &'static str) -> &'static str {
    FUNCTION.replace(name)
}

/// Returns the number of this PE; `None` if this process is not a PE.
pub(super) fn own_pe() -> Option<i32> {
    Some(PE.load(Ordering::Acquire)).filter(|pe| *pe >= 0)
}

/// Sets the number of this PE.
pub(crate) fn set_own_pe(pe: Option<i32>) {
    PE.store(pe.unwrap_or(-1), Ordering::Release);
}
