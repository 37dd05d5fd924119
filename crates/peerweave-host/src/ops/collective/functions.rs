//! Reductions by a function of the caller. It gets copies of elements, because other ranks may
//! access the elements themselves.

use crate::simd::{self, Input};
use crate::sync::wait::Stop;
use peerweave_core::Error;
use peerweave_core::backend::Combine;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The size of the blocks in which elements are copied, in bytes.
const BLOCK: usize = 4096;

/// Combines `count` elements of each input, in rank order, and stores the result to each output.
/// Outputs are inputs, or do not overlap them.
pub(super) fn combine(function: &dyn Combine, size: usize, inputs: &[Input], outputs: &[*mut u8], count: usize) {
    let Some((first, others)) = inputs.split_first() else { return };
    let block = (BLOCK / size).clamp(1, count.max(1));
    let (mut accumulator, mut operand) = (vec![0u8; block * size], vec![0u8; block * size]);
    for start in (0..count).step_by(block) {
        let (at, bytes) = (start * size, block.min(count - start) * size);
        // SAFETY: callers pass operands and results of `count` elements each, as for
        // `simd::reduce`; the copies are of this function.
        unsafe { simd::copy(accumulator.as_mut_ptr(), first.at.wrapping_add(at), bytes) };
        for input in others {
            // SAFETY: as above.
            unsafe { simd::copy(operand.as_mut_ptr(), input.at.wrapping_add(at), bytes) };
            function.combine(&mut accumulator[..bytes], &operand[..bytes]);
        }
        for output in outputs {
            // SAFETY: as above. All inputs of the block have been read.
            unsafe { simd::copy(output.wrapping_add(at), accumulator.as_ptr(), bytes) };
        }
    }
}

/// Runs a collective that calls a function of the caller. A panic of the function becomes an error,
/// so that the team learns of it.
pub(super) fn catching(call: &'static str, run: impl FnOnce() -> Result<(), Stop>) -> Result<(), Stop> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = format!("the function that combines elements panicked: {}", text.unwrap_or("no text"));
        Err(Error::system(call, std::io::Error::other(text)).into())
    })
}
