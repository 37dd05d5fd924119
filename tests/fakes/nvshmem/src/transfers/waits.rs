//! Waits for words of this PE, in stream order.
//!
//! Invariant: a word is read atomically, and belongs to the wait if its mask entry is zero.

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::types::each_wait;
use crate::call::{self, export, exports, undefined};
use crate::job::{World, live, on_stream};
use crate::peers::wait_for;

/// A type of words that can be waited for.
trait Word: Copy + PartialOrd + Send + Sync + 'static {
    /// Reads the word atomically.
    ///
    /// # Safety
    /// The address is the address of a live, aligned word.
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

/// Evaluates a comparison of signals. "Greater or equal" interprets the difference as a signed
/// number, because NVSHMEM implements this wait by a stream operation of the device.
fn holds_in_the_cycle(found: u64, comparison: c_int, wanted: u64) -> bool {
    const GREATER_OR_EQUAL: c_int = 5;
    match comparison {
        GREATER_OR_EQUAL => found.wrapping_sub(wanted) as i64 >= 0,
        _ => holds(found, comparison, wanted),
    }
}

/// Enqueues a wait for words of this PE, with one value for each word or one value for all words.
fn wait_on_stream<T: Word>(
    words: usize,
    count: usize,
    mask: *const c_int,
    (comparison, holds): (c_int, fn(T, c_int, T) -> bool),
    values: impl Fn() -> Vec<T> + Send + Sync + 'static,
    stream: *mut c_void,
) {
    let world = live();
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
    // A word belongs to the wait if its mask entry is zero. SAFETY: the caller guarantees that a
    // mask that is not null has `count` entries.
    let counts = |index| mask.is_null() || unsafe { *mask.add(index) } == 0;
    let wanted: Vec<usize> = (0..count).filter(|index| counts(*index)).collect();
    let work = move |world: &Arc<World>, function: &'static str| {
        // Reads the values in stream order, because they may change before the stream reaches this
        // point.
        let (mut left, values) = (wanted.clone(), values());
        let step = || {
            let memory = world.memory();
            memory.symmetric(function, "the words", words, count * size_of::<T>());
            left.retain(|index| {
                // SAFETY: the words were found live, stay live while the memory is locked, and are
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
    fn nvshmemx_signal_wait_until_on_stream(word: *mut u64, comparison: c_int, value: u64, stream: *mut c_void) {
        wait_on_stream(word.addr(), 1, std::ptr::null(), (comparison, holds_in_the_cycle), move || vec![value], stream);
    }
}

macro_rules! waits {
    ($name:literal $kind:ty) => {
        export! { ["nvshmemx_", $name, "_wait_until_on_stream"]
            (word: *mut $kind, comparison: c_int, value: $kind, stream: *mut c_void) {
            wait_on_stream(word.addr(), 1, std::ptr::null(), (comparison, holds), move || vec![value], stream);
        } }
        export! { ["nvshmemx_", $name, "_wait_until_all_on_stream"]
            (words: *mut $kind, count: usize, mask: *const c_int, comparison: c_int, value: $kind, stream: *mut c_void) {
            wait_on_stream(words.addr(), count, mask, (comparison, holds), move || vec![value], stream);
        } }
        export! { ["nvshmemx_", $name, "_wait_until_all_vector_on_stream"]
            (words: *mut $kind, count: usize, mask: *const c_int, comparison: c_int, values: *mut $kind, stream: *mut c_void) {
            let first = values.addr();
            // SAFETY: the caller guarantees a value for each word when the stream reaches this
            // point.
            let values = move || unsafe { std::slice::from_raw_parts(first as *const $kind, count) }.to_vec();
            wait_on_stream(words.addr(), count, mask, (comparison, holds), values, stream);
        } }
    };
}
each_wait!(waits);
