//! An all_reduce, the addition of a residual, and RMSNorm in one kernel.

use std::sync::Arc;

use peerweave_collectives::rms_norm::{self, Algorithm, Norm, Output};
use peerweave_collectives::{Call, LINE_BYTES};
use peerweave_driver::CudaStream;
use peerweave_driver::launch::LoadedKernel;
use peerweave_types::{DType, ReduceOp};

use super::Collectives;
use crate::error::{CudaError, misuse};
use crate::route::{self, NormRoute, Route};

/// The operands and parameters of [`Collectives::all_reduce_rms_norm`]. The input, the residual and
/// the result consist of rows of elements.
///
/// The length of a row in bytes must be a multiple of 16. All addresses must be multiples of 16,
/// except the address of the scales, which must be a multiple of 4. Ranges must not overlap, except
/// that the result may overwrite the input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNormCall {
    /// Device address of this rank's input.
    pub input: u64,
    /// Device address of the residual. The call adds the inputs of all ranks to the residual, and
    /// replaces the residual by the sum `x`.
    pub residual: u64,
    /// Device address of the result.
    pub output: u64,
    /// Device address of the weight. The call multiplies each normalised row by the weight, element
    /// by element. The weight has as many elements as a row.
    pub weight: u64,
    /// Number of rows in the input, the residual and the result.
    pub rows: u64,
    /// Number of elements in a row.
    pub hidden: u64,
    /// Element type of the input, the residual and the weight: `F16`, `BF16` or `F32`.
    pub dtype: DType,
    /// Number that is added to the mean of the squares of a row. Must be positive and finite.
    pub epsilon: f32,
    /// The type of the result, and the scale with which the result is quantised.
    pub quantization: RmsNormOutput,
}

/// The type and the scale of the result of an all_reduce with RMSNorm.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RmsNormOutput {
    /// The result has the element type of the input.
    Same,
    /// The call divides the result by one scale, and converts the quotients to `F8E4M3` or `I8`.
    Scaled {
        /// The element type of the result: `F8E4M3` or `I8`.
        dtype: DType,
        /// Positive, finite number by which the call divides each element of the result.
        scale: f32,
    },
    /// The call computes a scale for each row of the result, divides the row by this scale, and
    /// converts the quotients to `F8E4M3` or `I8`.
    RowScaled {
        /// The element type of the result: `F8E4M3` or `I8`.
        dtype: DType,
        /// Device address to which the call writes the scales: one `f32` for each row.
        scales: u64,
    },
}

impl RmsNormCall {
    fn row_bytes(&self) -> u64 {
        self.hidden.saturating_mul(self.dtype.size_bytes() as u64)
    }

    /// Checks the operands and parameters of the call `call`. Returns the number of 16-byte lines
    /// in a row.
    fn check(&self, call: &'static str) -> Result<u64, CudaError> {
        const LINE: u64 = LINE_BYTES as u64;
        if !matches!(self.dtype, DType::F16 | DType::BF16 | DType::F32) {
            return Err(misuse(call, "dtype", self.dtype.rust_name(), "f16, bf16 or f32"));
        }
        let row_bytes = self.row_bytes();
        if self.hidden == 0 || self.hidden > MOST_HIDDEN || !row_bytes.is_multiple_of(LINE) {
            return Err(misuse(call, "hidden", self.hidden, "1 to 16777215 elements that fill a multiple of 16 bytes"));
        }
        let bytes = self.rows.checked_mul(row_bytes);
        for (what, at, bytes) in [
            ("input", self.input, bytes),
            ("residual", self.residual, bytes),
            ("output", self.output, bytes),
            ("weight", self.weight, Some(row_bytes)),
        ] {
            if !at.is_multiple_of(LINE) || (at == 0 && self.rows > 0) {
                return Err(misuse(call, what, format!("{at:#x}"), "an address that is a multiple of 16"));
            }
            if bytes.and_then(|bytes| at.checked_add(bytes)).is_none() {
                return Err(misuse(call, "rows", self.rows, "a number of rows that fits in the address space"));
            }
        }
        if !(self.epsilon > 0.0 && self.epsilon.is_finite()) {
            return Err(misuse(call, "epsilon", self.epsilon, "a positive, finite number"));
        }
        match self.quantization {
            RmsNormOutput::Same => {}
            RmsNormOutput::Scaled { dtype, scale } => {
                quantized(call, dtype)?;
                if !(scale > 0.0 && scale.is_finite()) {
                    return Err(misuse(call, "scale", scale, "a positive, finite number"));
                }
            }
            RmsNormOutput::RowScaled { dtype, scales } => {
                quantized(call, dtype)?;
                if !scales.is_multiple_of(4) || (scales == 0 && self.rows > 0) {
                    return Err(misuse(call, "scales", format!("{scales:#x}"), "an address that is a multiple of 4"));
                }
            }
        }
        Ok(row_bytes / LINE)
    }

    /// Returns the two arguments of a launch that handles `rows` rows of the call, starting at row
    /// `first`. `common` contains the fields of [`Call`] that are the same in all calls.
    fn part(&self, common: &Call, first: u64, rows: u64, row_lines: u64) -> (Call, Norm) {
        let skipped = first * self.row_bytes();
        let (output, inverse_scale, scales) = match self.quantization {
            RmsNormOutput::Same => (Output::Same, 1.0, 0),
            RmsNormOutput::Scaled { dtype, scale } => (output_of(dtype), 1.0 / scale, 0),
            RmsNormOutput::RowScaled { dtype, scales } => (output_of(dtype), 1.0, scales + 4 * first),
        };
        let result = if output == Output::Same { skipped } else { first * self.hidden };
        let call = Call {
            send: self.input + skipped,
            recv: self.output + result,
            count: rows * self.hidden,
            op: ReduceOp::Sum as u32,
            ..*common
        };
        let norm = Norm {
            residual: self.residual + skipped,
            weight: self.weight,
            scales,
            rows,
            row_lines,
            epsilon: self.epsilon,
            inverse_scale,
            output: output as u32,
            reserved: 0,
        };
        (call, norm)
    }
}

/// Maximum number of elements in a row. `f32` represents each integer up to this number exactly.
const MOST_HIDDEN: u64 = (1 << 24) - 1;

fn quantized(call: &'static str, dtype: DType) -> Result<(), CudaError> {
    let is_known = matches!(dtype, DType::F8E4M3 | DType::I8);
    if is_known { Ok(()) } else { Err(misuse(call, "quantization", dtype.rust_name(), "f8e4m3 or i8")) }
}

fn output_of(dtype: DType) -> Output {
    if dtype == DType::I8 { Output::I8 } else { Output::F8E4M3 }
}

/// Returns the error of a call whose rows are so long that one row does not fit into the staging
/// memory.
fn too_long(call: &'static str, hidden: u64, limits: &route::Limits) -> CudaError {
    let expected = format!("a row that fits into {} bytes of staging memory, for {} ranks", limits.bank_bytes, limits.ranks);
    misuse(call, "hidden", hidden, &expected)
}

impl Collectives {
    /// Enqueues one kernel that adds up the inputs of all ranks, adds a residual, and computes the
    /// RMSNorm of each row. The kernel replaces the residual by `x = all_reduce(input) + residual`.
    /// The output is `x · weight / √(mean(x²) + epsilon)`. If all rows together do not fit into the
    /// staging memory, the call enqueues several kernels.
    ///
    /// The result has the same bits as the result of [`all_reduce`](Self::all_reduce) followed by
    /// [`add_rms_norm`](Self::add_rms_norm).
    ///
    /// # Collective
    /// All ranks, with the same type, epsilon, number of rows and length of a row. The contents of
    /// the residual and of the weight must be the same on all ranks.
    ///
    /// # Errors
    /// A call that returns [`CudaError::Misuse`] enqueues no kernel. [`CudaError::Misuse`] if the
    /// length of a row is not a multiple of 16 bytes, or if a row does not fit into the staging
    /// memory. [`CudaError::Misuse`] if an address is not aligned, or if the type is not supported.
    /// [`CudaError::Failed`] after a kernel has failed. Errors of the launch.
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce), for all ranges of the call. No two ranges may
    /// overlap, except that the output may be the input.
    pub unsafe fn all_reduce_rms_norm(&self, stream: &Arc<CudaStream>, call: &RmsNormCall) -> Result<(), CudaError> {
        const CALL: &str = "all_reduce_rms_norm";
        let row_lines = call.check(CALL)?;
        let limits = &self.staging.limits;
        let route = route::norm(call.rows, row_lines, limits);
        if route.rows == 0 {
            return Err(too_long(CALL, call.hidden, limits));
        }
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.norms(CALL, stream, call, route, row_lines) }
    }

    /// Like [`all_reduce_rms_norm`](Self::all_reduce_rms_norm), but the caller chooses the
    /// algorithm: two-shot if `two_shot` is `true`, otherwise one-shot. Intended for measurements
    /// and tests.
    ///
    /// # Collective
    /// As for [`all_reduce_rms_norm`](Self::all_reduce_rms_norm). All ranks must also choose the
    /// same algorithm.
    ///
    /// # Errors
    /// As for [`all_reduce_rms_norm`](Self::all_reduce_rms_norm), and [`CudaError::Misuse`] if the
    /// algorithm does not support rows of this length.
    ///
    /// # Safety
    /// As for [`all_reduce_rms_norm`](Self::all_reduce_rms_norm).
    pub unsafe fn all_reduce_rms_norm_by(
        &self,
        two_shot: bool,
        stream: &Arc<CudaStream>,
        call: &RmsNormCall,
    ) -> Result<(), CudaError> {
        const CALL: &str = "all_reduce_rms_norm_by";
        let row_lines = call.check(CALL)?;
        let algorithm = if two_shot { Algorithm::TwoShot } else { Algorithm::OneShot };
        let route = route::norm_by(algorithm, call.rows, row_lines, &self.staging.limits);
        if route.rows == 0 {
            return Err(too_long(CALL, call.hidden, &self.staging.limits));
        }
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.norms(CALL, stream, call, route, row_lines) }
    }

    /// Enqueues a kernel that adds a residual and computes RMSNorm, without communication. This is
    /// the second half of [`all_reduce_rms_norm`](Self::all_reduce_rms_norm): the input must
    /// already be the sum over all ranks.
    ///
    /// # Errors
    /// As for [`all_reduce_rms_norm`](Self::all_reduce_rms_norm).
    ///
    /// # Safety
    /// As for [`all_reduce_rms_norm`](Self::all_reduce_rms_norm).
    pub unsafe fn add_rms_norm(&self, stream: &Arc<CudaStream>, call: &RmsNormCall) -> Result<(), CudaError> {
        const CALL: &str = "add_rms_norm";
        let row_lines = call.check(CALL)?;
        let route = route::norm_by(Algorithm::None, call.rows, row_lines, &self.staging.limits);
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.norms(CALL, stream, call, route, row_lines) }
    }

    /// Loads the kernels of [`all_reduce_rms_norm`](Self::all_reduce_rms_norm) for one element
    /// type. [`load`](Self::load) does not load these kernels.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn load_rms_norm(&self, dtype: DType) -> Result<(), CudaError> {
        Algorithm::ALL.into_iter().try_for_each(|algorithm| self.norm_kernel("load_rms_norm", algorithm, dtype).map(drop))
    }

    /// Enqueues the kernel of `route` for all rows of `call`. Each launch handles at most
    /// `route.rows` rows. A row has `row_lines` 16-byte lines.
    ///
    /// # Safety
    /// As for [`all_reduce_rms_norm`](Self::all_reduce_rms_norm).
    unsafe fn norms(
        &self,
        name: &'static str,
        stream: &Arc<CudaStream>,
        call: &RmsNormCall,
        route: NormRoute,
        row_lines: u64,
    ) -> Result<(), CudaError> {
        if call.rows == 0 {
            return Ok(());
        }
        let kernel = self.norm_kernel(name, route.algorithm, call.dtype)?;
        let mut first = 0;
        while first < call.rows {
            let rows = route.rows.min(call.rows - first);
            let (arguments, norm) = call.part(&self.staging.banks, first, rows, row_lines);
            // The launch uses only the number of blocks and threads of this route. The algorithm of
            // the route has no meaning here.
            let blocks = rows.min(u64::from(route.blocks)) as u32;
            let shape = Route::new(peerweave_collectives::Algorithm::OneShot, blocks, route.threads);
            let bytes = rows * call.row_bytes();
            // SAFETY: the caller guarantees the operands; the areas belong to this team.
            unsafe { self.enqueue_with(name, stream, kernel, shape, &arguments, Some(&norm), bytes) }?;
            first += rows;
        }
        Ok(())
    }

    fn norm_kernel(&self, call: &'static str, algorithm: Algorithm, dtype: DType) -> Result<&LoadedKernel, CudaError> {
        let slot = &self.norms[algorithm as usize][dtype as usize];
        self.loaded(slot, call, Some(dtype), || rms_norm::kernel(algorithm, dtype, self.staging.limits.ranks))
    }
}
