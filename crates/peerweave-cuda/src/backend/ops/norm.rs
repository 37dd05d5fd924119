//! Carries out an all-reduce with residual and RMSNorm by one kernel of the module `collective`.

use peerweave_core::Error;
use peerweave_core::backend::{Collective, CollectiveKind, NormScale, Place, Quantization};
use peerweave_types::ReduceOp;

use super::collectives::Path;
use crate::backend::enqueue::{Enqueue, Source};
use crate::backend::error::unsupported;
use crate::backend::teams::TeamOf;
use crate::collective::{RmsNormCall, RmsNormOutput};

/// Required alignment in bytes of operands on a GPU. The length of a row must be a multiple of this
/// number.
const ALIGNMENT: usize = peerweave_collectives::LINE_BYTES;

impl Enqueue<'_> {
    /// Enqueues an all-reduce, the addition of the residual, and RMSNorm.
    pub(super) fn norm(&mut self, team: &TeamOf, op: &Collective) -> Result<Source, Error> {
        let norm = op.rms_norm().unwrap_or_else(|| panic!("peerweave-core bug: all_reduce_rms_norm has no parameters"));
        let (Some(send), Some(recv)) = (op.send, op.recv) else {
            panic!("peerweave-core bug: all_reduce_rms_norm has no operand")
        };
        let path = self.kernels_of(team)?;
        let (rows, row_bytes) = (op.count / norm.hidden, norm.hidden * norm.element_bytes);
        if rows == 0 {
            return Ok(Source::Copy);
        }
        if !row_bytes.is_multiple_of(ALIGNMENT) {
            return Err(unsupported(
                self.call,
                "the length of a row is not a multiple of 16 bytes, which the kernels require: pad the rows",
            ));
        }
        let are_aligned = [send, recv, norm.residual, norm.weight].into_iter().all(|place| self.is_aligned(place));
        if !are_aligned {
            let why = "the address of an operand is not a multiple of 16, which the kernels require: align the operands";
            return Err(unsupported(self.call, why));
        }
        let bytes = rows * row_bytes;
        let input = self.reading(send, bytes)?;
        let weight = self.reading(norm.weight, row_bytes)?;
        let before = self.reading(norm.residual, bytes)?;
        let (residual, new_residual) = self.writing(norm.residual, bytes)?;
        self.copy(residual, before, bytes)?;
        let (output, result) = self.writing(recv, op.count * norm.output_bytes())?;
        let mut row_scales = None;
        let quantization = match norm.quantization {
            None => RmsNormOutput::Same,
            Some(Quantization { dtype, scale: NormScale::Static(scale) }) => RmsNormOutput::Scaled { dtype, scale },
            Some(Quantization { dtype, scale: NormScale::Rows(at) }) => {
                let scales;
                (scales, row_scales) = self.writing(at, rows * size_of::<f32>())?;
                RmsNormOutput::RowScaled { dtype, scales }
            }
        };
        let (hidden, dtype, epsilon) = (norm.hidden as u64, op.dtype, norm.epsilon);
        let call = RmsNormCall { input, residual, output, weight, rows: rows as u64, hidden, dtype, epsilon, quantization };
        let source = match path {
            Path::Kernels(collectives) => {
                // SAFETY: the ranges have the elements that `call` states. They stay allocated
                // until the stream has passed the call: they are recorded or held. The core has
                // checked that they overlap only in the in-place form.
                let enqueued = unsafe { collectives.all_reduce_rms_norm(self.stream, &call) };
                self.enqueued(team, enqueued)?
            }
            Path::Hosts(span) => {
                let sum = self.scratch(bytes)?;
                let own = Collective { kind: CollectiveKind::AllReduce, op: ReduceOp::Sum, ..op.clone() };
                let source = self.reduce_between(team, span, &own, input, sum)?;
                let call = RmsNormCall { input: sum, ..call };
                // SAFETY: as for the call above; the sum is scratch memory of this operation.
                let enqueued = unsafe { self.inside(span)?.add_rms_norm(self.stream, &call) };
                self.enqueued(team, enqueued).map(|_| source)?
            }
        };
        [new_residual, result, row_scales].into_iter().try_for_each(|staged| self.written(staged))?;
        Ok(source)
    }

    /// Returns whether an operand starts at a multiple of [`ALIGNMENT`] on the device. Returns
    /// `true` for memory of the host, because it is copied to aligned pinned memory.
    fn is_aligned(&self, place: Place) -> bool {
        matches!(place, Place::Private(_)) || self.state.address(place).is_multiple_of(ALIGNMENT as u64)
    }
}
