//! The collectives scan and exclusive_scan. In a scan, every rank gets the reduction of its own
//! input and the inputs of all lower ranks. In an exclusive scan, every rank gets the reduction of
//! the inputs of all lower ranks.

use std::sync::Arc;

use peerweave_collectives::{Call, scan};
use peerweave_driver::CudaStream;
use peerweave_types::{DType, ReduceOp};

use super::Collectives;
use super::operands::Operands;
use crate::error::{CudaError, misuse};

impl Collectives {
    /// Enqueues an inclusive scan: every rank contributes `count` elements, and rank `r` gets the
    /// reduction of the inputs of ranks 0 to `r`.
    ///
    /// The operands must meet the requirements of [`all_reduce`](Self::all_reduce). Every rank
    /// sends its elements to all higher ranks. So in a call of `n` bytes among `r` ranks, a GPU
    /// sends up to `(r - 1) * n` bytes. If the elements of all ranks do not fit into a bank (a
    /// receive buffer of the staging memory), the call enqueues several kernels. For
    /// [`ReduceOp::PreMulSum`], `scalar` holds the zero-extended bits of the factor by which this
    /// rank multiplies its elements. Other reductions ignore `scalar`.
    ///
    /// # Collective
    /// All ranks, with the same count, type and reduction.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce), with two differences: `PreMulSum` is valid, and
    /// [`ReduceOp::Avg`] is a [`CudaError::Misuse`].
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce).
    #[expect(clippy::too_many_arguments, reason = "the function takes all arguments of all_reduce, and also a scalar")]
    pub unsafe fn scan(
        &self,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        count: u64,
        dtype: DType,
        op: ReduceOp,
        scalar: u64,
    ) -> Result<(), CudaError> {
        let operands = Operands::new(send, recv, count, dtype, op, scalar);
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.scan_by("scan", stream, &operands, false) }
    }

    /// Like [`scan`](Self::scan), but without the rank's own input: rank `r` gets the reduction of
    /// the inputs of ranks 0 to `r - 1`. On rank 0, the call does not write `recv`.
    ///
    /// # Errors
    /// As for [`scan`](Self::scan).
    ///
    /// # Safety
    /// As for [`scan`](Self::scan).
    #[expect(clippy::too_many_arguments, reason = "the function takes all arguments of all_reduce, and also a scalar")]
    pub unsafe fn exclusive_scan(
        &self,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        count: u64,
        dtype: DType,
        op: ReduceOp,
        scalar: u64,
    ) -> Result<(), CudaError> {
        let operands = Operands::new(send, recv, count, dtype, op, scalar);
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.scan_by("exclusive_scan", stream, &operands, true) }
    }

    /// Enqueues an exclusive scan if `exclusive` is true, otherwise an inclusive scan. Errors
    /// contain `name`, the name of the call.
    ///
    /// # Safety
    /// As for [`scan`](Self::scan).
    unsafe fn scan_by(
        &self,
        name: &'static str,
        stream: &Arc<CudaStream>,
        operands: &Operands,
        exclusive: bool,
    ) -> Result<(), CudaError> {
        let Operands { send, recv, count, dtype, op, scalar, .. } = *operands;
        if op == ReduceOp::Avg {
            return Err(misuse(
                name,
                "op",
                op,
                "a reduction other than avg (for averages, divide the result of a scan with sum)",
            ));
        }
        operands.check(name)?;
        if count == 0 {
            return Ok(());
        }
        let slot = &self.scans[dtype as usize];
        let kernel = self.loaded(slot, name, Some(dtype), || scan::kernel(dtype, self.staging.limits.ranks))?;
        let is_exclusive = u32::from(exclusive);
        let call = Call { send, recv, count, op: op as u32, scalar, is_exclusive, ..self.staging.banks };
        // SAFETY: the caller guarantees the operands; the areas belong to this team.
        unsafe { self.enqueue_in_pieces(name, stream, kernel, &call, dtype.size_bytes() as u64) }
    }
}
