//! RMSNorm after an all-reduce. The ranks communicate only in the all-reduce. After the all-reduce,
//! each rank computes the norm of all rows without communication.

use crate::ops::shared::Shared;
use crate::simd;
use peerweave_core::backend::{Collective, NormScale, Place, Quantization, RmsNorm};

/// The second half of an all-reduce with RMSNorm: after the reduction, each rank normalizes all
/// rows.
#[derive(Debug)]
pub(super) struct Norm {
    /// The collective that the program has called: an all-reduce followed by RMSNorm. Its `recv` is
    /// the memory of the normalized rows.
    op: Collective,
    /// Memory for the sum of the all-reduce. Used only if the result is quantized, because the sum
    /// then has a different type than the result.
    sum: Vec<u64>,
}

impl Norm {
    /// Splits `op`, an all-reduce with RMSNorm, into an all-reduce and the norm that each rank
    /// computes after it. If the result is quantized, the all-reduce writes to memory of the
    /// returned norm.
    pub(super) fn after(op: &Collective) -> (Collective, Self) {
        let norm = of(op);
        let mut reduction = op.clone();
        let mut sum = Vec::new();
        if norm.quantization.is_some() {
            sum = vec![0; (op.count * norm.element_bytes).div_ceil(size_of::<u64>())];
            reduction.recv = Some(Place::Private(sum.as_mut_ptr().cast()));
        }
        (reduction, Self { op: op.clone(), sum })
    }

    /// Adds the sum to the residual, and writes the normalized rows to the result. Quantizes the
    /// rows if the call requests it.
    pub(super) fn run(&self, shared: &Shared) {
        let norm = of(&self.op);
        let result = self.op.recv.unwrap_or_else(|| panic!("peerweave-core bug: all_reduce_rms_norm has no result"));
        let sum = if norm.quantization.is_some() { self.sum.as_ptr().cast::<u8>() } else { shared.address(result).cast_const() };
        let bytes = norm.hidden * norm.element_bytes;
        let [mut weight, mut from, mut x] = [(); 3].map(|()| vec![0; bytes]);
        let mut to = vec![0; norm.hidden * norm.output_bytes()];
        // SAFETY: the core has checked that the operands have all rows, and that the weight has the
        // length of a row. The vectors belong to this function. The sum has the length of the
        // input. Other threads may access the operands at the same time, which `simd::copy` allows.
        let read = |to: &mut [u8], from: *const u8| unsafe { simd::copy(to.as_mut_ptr(), from, to.len()) };
        // SAFETY: as above.
        let write = |to: *mut u8, from: &[u8]| unsafe { simd::copy(to, from.as_ptr(), from.len()) };
        read(&mut weight, shared.address(norm.weight));
        let residual = shared.address(norm.residual);
        for row in 0..self.op.count / norm.hidden {
            read(&mut from, sum.wrapping_add(row * bytes));
            read(&mut x, residual.wrapping_add(row * bytes));
            let scale = norm.row(self.op.dtype, &from, &mut x, &weight, &mut to);
            write(residual.wrapping_add(row * bytes), &x);
            write(shared.address(result).wrapping_add(row * to.len()), &to);
            if let Some(Quantization { scale: NormScale::Rows(scales), .. }) = norm.quantization {
                write(shared.address(scales).wrapping_add(row * size_of::<f32>()), &scale.to_le_bytes());
            }
        }
    }
}

fn of(op: &Collective) -> &RmsNorm {
    op.rms_norm().unwrap_or_else(|| panic!("peerweave-core bug: all_reduce_rms_norm has no parameters"))
}
