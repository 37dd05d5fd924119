//! Typed waits for words of this PE, in stream order.
//!
//! `signal` implements them. Invariant: a word is part of the wait if its mask is zero.

use core::ffi::{c_int, c_void};

use crate::signal::wait_on_stream;

macro_rules! waits {
    ($name:literal $kind:ty) => {
        export! { ["nvshmemx_", $name, "_wait_until_on_stream"]
            (word: *mut $kind, comparison: c_int, value: $kind, stream: *mut c_void) {
            wait_on_stream(word.addr(), 1, std::ptr::null(), comparison, move || vec![value], stream);
        } }
        export! { ["nvshmemx_", $name, "_wait_until_all_on_stream"]
            (words: *mut $kind, count: usize, mask: *const c_int, comparison: c_int, value: $kind, stream: *mut c_void) {
            wait_on_stream(words.addr(), count, mask, comparison, move || vec![value], stream);
        } }
        export! { ["nvshmemx_", $name, "_wait_until_all_vector_on_stream"]
            (words: *mut $kind, count: usize, mask: *const c_int, comparison: c_int, values: *mut $kind, stream: *mut c_void) {
            let first = values.addr();
            // SAFETY: there is a value for each word when the stream reaches this point: guaranteed
            // by the caller.
            let values = move || unsafe { std::slice::from_raw_parts(first as *const $kind, count) }.to_vec();
            wait_on_stream(words.addr(), count, mask, comparison, values, stream);
        } }
    };
}
each_wait!(waits);
