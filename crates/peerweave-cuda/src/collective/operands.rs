//! The operands of collective calls, and checks of their addresses and lengths.

use peerweave_collectives::LINE_BYTES;
use peerweave_types::{DType, ReduceOp};

use crate::error::{CudaError, misuse};

/// The operands of a reduction: addresses on this device, and the number and type of elements.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    pub(super) send: u64,
    pub(super) recv: u64,
    pub(super) count: u64,
    pub(super) dtype: DType,
    pub(super) op: ReduceOp,
    pub(super) scalar: u64,
}

impl Operands {
    pub(super) fn new(send: u64, recv: u64, count: u64, dtype: DType, op: ReduceOp, scalar: u64) -> Self {
        Self { send, recv, count, dtype, op, scalar }
    }

    /// Returns the operands of a reduction without a scalar factor. Fails for `PreMulSum`, which
    /// needs a scalar.
    pub(super) fn without_scalar(
        call: &'static str,
        send: u64,
        recv: u64,
        count: u64,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<Self, CudaError> {
        if op == ReduceOp::PreMulSum {
            return Err(misuse(call, "op", op, "a reduction without a scalar (use the call whose name ends in _scaled)"));
        }
        Ok(Self::new(send, recv, count, dtype, op, 0))
    }

    /// Returns whether the call is plain: its reduction is `Sum`, and its operands are whole
    /// 16-byte lines. Plain calls have their own kernels.
    pub(super) fn are_plain(&self) -> bool {
        let bytes = self.count * self.dtype.size_bytes() as u64;
        self.op == ReduceOp::Sum && (self.send | self.recv | bytes).is_multiple_of(LINE_BYTES as u64)
    }

    pub(super) fn check(&self, call: &'static str) -> Result<(), CudaError> {
        let Self { send, recv, count, dtype, op, .. } = *self;
        if !op.accepts(dtype) {
            return Err(misuse(call, "op", op, &format!("a reduction that is defined for {}", dtype.rust_name())));
        }
        let size = dtype.size_bytes() as u64;
        for (what, address) in [("send", send), ("recv", recv)] {
            if !address.is_multiple_of(size) || (address == 0 && count > 0) {
                return Err(misuse(call, what, format!("{address:#x}"), &format!("an address that is a multiple of {size}")));
            }
        }
        let bytes =
            count.checked_mul(size).filter(|bytes| send.checked_add(*bytes).is_some() && recv.checked_add(*bytes).is_some());
        let Some(bytes) = bytes else {
            return Err(misuse(call, "count", count, "a number of elements that fits in the address space"));
        };
        if send != recv && send < recv + bytes && recv < send + bytes {
            let value = format!("{recv:#x}, which overlaps send at {send:#x}");
            return Err(misuse(call, "recv", value, "the address of send, or memory that does not overlap send"));
        }
        Ok(())
    }
}

/// Checks that two operands, `send` and `recv`, are aligned and do not overlap. `operands` contains
/// the address and the number of parts of each operand. A part has `count` elements of `size`
/// bytes. A call in place passes 0 parts for one operand, so that the overlap is not checked.
/// Returns the length of a part in bytes.
pub(super) fn check_parts(call: &'static str, operands: [(u64, u64); 2], count: u64, size: u64) -> Result<u64, CudaError> {
    let end = |(at, parts): (u64, u64)| count.checked_mul(size)?.checked_mul(parts).and_then(|bytes| at.checked_add(bytes));
    let [Some(first), Some(second)] = operands.map(end) else {
        return Err(misuse(call, "the length", count, "a length that fits in the address space"));
    };
    for (what, (at, _)) in ["send", "recv"].into_iter().zip(operands) {
        if !at.is_multiple_of(size) || (at == 0 && count > 0) {
            return Err(misuse(call, what, format!("{at:#x}"), &format!("an address that is a multiple of {size}")));
        }
    }
    // A call in place passes 0 as the number of parts of one operand. Such an operand overlaps no
    // memory.
    let are_both = operands.iter().all(|(_, parts)| *parts > 0);
    if are_both && operands[0].0 < second && operands[1].0 < first {
        return Err(misuse(call, "recv", format!("{:#x}", operands[1].0), "memory that does not overlap send"));
    }
    Ok(count * size)
}
