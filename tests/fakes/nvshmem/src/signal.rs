//! Signals: 64-bit words that are set or added to atomically; and waits for words.
//!
//! `waits` exports the typed waits. Invariant: a word is read and written atomically.

use core::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::{SIGNAL_ADD, SIGNAL_SET};
use crate::enqueue::on_stream;
use crate::log::undefined;
use crate::meet::wait_for;
use crate::world::World;
use crate::{call, counters, world};

/// An update of a word of a PE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signal {
    pub(crate) word: usize,
    pub(crate) value: u64,
    pub(crate) operation: c_int,
    pub(crate) pe: c_int,
}

/// Ends the process if the update is invalid.
pub(crate) fn check(world: &World, signal: Signal) {
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
pub(crate) fn apply(world: &World, function: &'static str, signal: Signal) {
    let memory = world.memory();
    let place = memory.symmetric(function, "the signal", signal.word, 8);
    // SAFETY: the word was found live, stays so while the memory is held, and is aligned.
    let word = unsafe { AtomicU64::from_ptr(memory.of(signal.pe, place).cast()) };
    if signal.operation == SIGNAL_ADD {
        word.fetch_add(signal.value, Ordering::AcqRel);
    } else {
        word.store(signal.value, Ordering::Release);
    }
}

/// A type of words that can be waited for.
pub(crate) trait Word: Copy + PartialOrd + Send + Sync + 'static {
    /// Reads the word atomically.
    ///
    /// # Safety
    /// The address is that of a live, aligned word.
    unsafe fn load(address: *const u8) -> Self;
}

macro_rules! words {
    ($($type:ty, $atomic:ident;)*) => {$(
        impl Word for $type {
            unsafe fn load(address: *const u8) -> Self {
                // SAFETY: guaranteed by the caller.
                unsafe { std::sync::atomic::$atomic::from_ptr(address.cast_mut().cast()) }.load(Ordering::Acquire)
            }
        }
    )*};
}
words! {
    i16, AtomicI16; u16, AtomicU16; i32, AtomicI32; u32, AtomicU32; i64, AtomicI64; u64, AtomicU64; isize, AtomicIsize; usize, AtomicUsize;
}

fn holds<T: PartialOrd>(found: T, comparison: c_int, wanted: T) -> bool {
    match comparison {
        0 => found == wanted,
        1 => found != wanted,
        2 => found > wanted,
        3 => found <= wanted,
        4 => found < wanted,
        _ => found >= wanted,
    }
}

/// Compares like a device stream, which NVSHMEM uses to wait for equal or greater signals: the
/// difference is a signed number.
fn holds_in_the_cycle(found: u64, comparison: c_int, wanted: u64) -> bool {
    const GREATER_OR_EQUAL: c_int = 5;
    match comparison {
        GREATER_OR_EQUAL => found.wrapping_sub(wanted) as i64 >= 0,
        _ => holds(found, comparison, wanted),
    }
}

/// Enqueues a wait for words of this PE, with one value for each word or one for all.
pub(crate) fn wait_on_stream<T: Word>(
    words: usize,
    count: usize,
    mask: *const c_int,
    comparison: c_int,
    values: impl Fn() -> Vec<T> + Send + Sync + 'static,
    stream: *mut c_void,
) {
    wait_on_stream_by(words, count, mask, (comparison, holds), values, stream);
}

fn wait_on_stream_by<T: Word>(
    words: usize,
    count: usize,
    mask: *const c_int,
    (comparison, holds): (c_int, fn(T, c_int, T) -> bool),
    values: impl Fn() -> Vec<T> + Send + Sync + 'static,
    stream: *mut c_void,
) {
    let world = world::live();
    if !(0..=5).contains(&comparison) {
        undefined(&format!("{}: unknown comparison {comparison}", call::function()));
    }
    if !words.is_multiple_of(size_of::<T>()) {
        undefined(&format!("{}: the word at {words:#x} is not aligned", call::function()));
    }
    if count == 0 {
        return;
    }
    world.memory().symmetric(call::function(), "the words", words, count * size_of::<T>());
    // A word counts where its mask is zero. SAFETY: a mask that is not null has `count` entries:
    // guaranteed by the caller.
    let counts = |index| mask.is_null() || unsafe { *mask.add(index) } == 0;
    let wanted: Vec<usize> = (0..count).filter(|index| counts(*index)).collect();
    let work = move |world: &std::sync::Arc<World>, function: &'static str| {
        // Reads the values in stream order, because they may change before the stream reaches this
        // point.
        let (mut left, values) = (wanted.clone(), values());
        let step = || {
            let memory = world.memory();
            memory.symmetric(function, "the words", words, count * size_of::<T>());
            left.retain(|index| {
                // SAFETY: the words were found live, stay so while the memory is held, and are
                // aligned.
                let found = unsafe { T::load((words + index * size_of::<T>()) as *const u8) };
                !holds(found, comparison, values[if values.len() == 1 { 0 } else { *index }])
            });
            left.is_empty()
        };
        wait_for(world.control, step, || format!("a word at {words:#x} in {function}"));
    };
    call::or_abort(on_stream(stream, work));
}

exports! {
    fn nvshmem_signal_fetch(word: *mut u64) -> u64 {
        let world = world::live();
        let memory = world.memory();
        memory.symmetric(call::function(), "the signal", word.addr(), 8);
        // SAFETY: the word was found live and stays so while the memory is held.
        unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Acquire)
    }

    fn nvshmemx_signal_op_on_stream(word: *mut u64, value: u64, operation: c_int, pe: c_int, stream: *mut c_void) {
        let signal = Signal { word: word.addr(), value, operation, pe };
        check(&world::live(), signal);
        counters::TRANSFERS.fetch_add(1, Ordering::Relaxed);
        call::or_abort(on_stream(stream, move |world, function| apply(world, function, signal)));
    }

    fn nvshmemx_signal_wait_until_on_stream(word: *mut u64, comparison: c_int, value: u64, stream: *mut c_void) {
        wait_on_stream_by(word.addr(), 1, std::ptr::null(), (comparison, holds_in_the_cycle), move || vec![value], stream);
    }

    fn nvshmemx_signal_counted_reset(word: *mut u64) {
        let world = world::live();
        let memory = world.memory();
        memory.symmetric(call::function(), "the signal", word.addr(), 8);
        // SAFETY: the word was found live and stays so while the memory is held.
        unsafe { AtomicU64::from_ptr(word) }.store(0, Ordering::Release);
    }
}
