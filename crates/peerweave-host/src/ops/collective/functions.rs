//! Reductions by a function that the caller passes.

use crate::simd::{self, Input};
use crate::sync::wait::Stop;
use peerweave_core::backend::{Combine, combine_in_order, function_panicked};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Combines `count` elements of each input, in rank order, and stores the result to each output.
/// Each output is the same range as an input, or does not overlap the inputs.
pub(super) fn combine(function: &dyn Combine, inputs: &[Input], outputs: &[*mut u8], count: usize) {
    let read = |number: usize, at: usize, into: &mut [u8]| {
        // SAFETY: callers pass operands and results of `count` elements each, as for
        // `simd::reduce`. `into` is a buffer of this function.
        unsafe { simd::copy(into.as_mut_ptr(), inputs[number].at.wrapping_add(at), into.len()) };
    };
    let write = |at: usize, from: &[u8]| {
        for output in outputs {
            // SAFETY: as above. All inputs of the block have been read.
            unsafe { simd::copy(output.wrapping_add(at), from.as_ptr(), from.len()) };
        }
    };
    combine_in_order(function, inputs.len(), count, read, write);
}

/// Runs a collective that calls a reduction function of the program. If the function panics,
/// returns an error. The other ranks are then notified of the failure.
pub(super) fn catching(call: &'static str, run: impl FnOnce() -> Result<(), Stop>) -> Result<(), Stop> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(function_panicked(call, &*panic).into()))
}
