//! The loop that combines the operands of a reduction by the caller's function. Backends that
//! compute on the host use this loop.

use super::Combine;
use crate::Error;
use std::any::Any;

/// Maximum number of bytes of an operand that are copied and combined at a time. If a single
/// element is larger, one element is copied at a time.
const BLOCK: usize = 4096;

/// Combines `operands` operands by `function`, in the order of the operands. Each operand has
/// `count` elements. `function` gets copies of the elements, because other threads may access the
/// operands concurrently.
///
/// - `read(operand, first, into)` fills `into` with bytes of an operand, starting at byte `first`.
/// - `write(first, bytes)` stores `bytes` in the result, starting at byte `first`. Before `write`
///   is called for a range, `read` has been called for that range of every operand.
pub fn combine_in_order(
    function: &dyn Combine,
    operands: usize,
    count: usize,
    mut read: impl FnMut(usize, usize, &mut [u8]),
    mut write: impl FnMut(usize, &[u8]),
) {
    if operands == 0 {
        return;
    }
    let size = function.element_bytes();
    let block = (BLOCK / size).clamp(1, count.max(1));
    let (mut accumulator, mut operand) = (vec![0u8; block * size], vec![0u8; block * size]);
    for start in (0..count).step_by(block) {
        let (at, bytes) = (start * size, block.min(count - start) * size);
        read(0, at, &mut accumulator[..bytes]);
        for number in 1..operands {
            read(number, at, &mut operand[..bytes]);
            function.combine(&mut accumulator[..bytes], &operand[..bytes]);
        }
        write(at, &accumulator[..bytes]);
    }
}

/// Converts a panic to the error of `call`. The function that combines elements has panicked with
/// `payload`.
pub fn function_panicked(call: &'static str, payload: &(dyn Any + Send)) -> Error {
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = text.unwrap_or("the panic has no message");
    let text = format!("the function that combines elements panicked: {message}");
    Error::system(call, std::io::Error::other(text))
}
