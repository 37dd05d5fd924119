//! Signals: 64-bit words that are set or added to atomically.
//!
//! Module `waits` has the waits for signals. Invariant: a word is read and written atomically.

use core::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::structs::{SIGNAL_ADD, SIGNAL_SET};
use crate::call::{self, exports, undefined};
use crate::job::{World, counters, live, on_stream};

/// An update of a signal word of a PE.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signal {
    pub(super) word: usize,
    pub(super) value: u64,
    pub(super) operation: c_int,
    pub(super) pe: c_int,
}

/// Ends the process if the update is invalid.
pub(super) fn check(world: &World, signal: Signal) {
    world.check_pe(signal.pe);
    if !matches!(signal.operation, SIGNAL_SET | SIGNAL_ADD) {
        undefined(&format!("{}: unknown signal operation {}", call::function(), signal.operation));
    }
    if !signal.word.is_multiple_of(8) {
        undefined(&format!("{}: the signal at {:#x} is not aligned", call::function(), signal.word));
    }
    world.memory().symmetric(call::function(), "the signal", signal.word, 8);
}

/// Applies the update.
pub(super) fn apply(world: &World, function: &'static str, signal: Signal) {
    let memory = world.memory();
    let place = memory.symmetric(function, "the signal", signal.word, 8);
    // SAFETY: the word was found live, stays live while the memory is locked, and is aligned.
    let word = unsafe { AtomicU64::from_ptr(memory.of(signal.pe, place).cast()) };
    if signal.operation == SIGNAL_ADD {
        word.fetch_add(signal.value, Ordering::AcqRel);
    } else {
        word.store(signal.value, Ordering::Release);
    }
}

/// Accesses a word of this PE.
fn own_word<T>(word: *mut u64, access: impl FnOnce(&AtomicU64) -> T) -> T {
    let world = live();
    let memory = world.memory();
    memory.symmetric(call::function(), "the signal", word.addr(), 8);
    // SAFETY: the word was found live, and stays live while the memory is locked. The caller of the
    // exported function guarantees its alignment.
    access(unsafe { AtomicU64::from_ptr(word) })
}

exports! {
    fn nvshmem_signal_fetch(word: *mut u64) -> u64 {
        own_word(word, |word| word.load(Ordering::Acquire))
    }

    fn nvshmemx_signal_op_on_stream(word: *mut u64, value: u64, operation: c_int, pe: c_int, stream: *mut c_void) {
        let signal = Signal { word: word.addr(), value, operation, pe };
        check(&live(), signal);
        counters::TRANSFERS.fetch_add(1, Ordering::Relaxed);
        call::or_abort(on_stream(stream, move |world, function| apply(world, function, signal)));
    }

    fn nvshmemx_signal_counted_reset(word: *mut u64) {
        own_word(word, |word| word.store(0, Ordering::Release));
    }
}
