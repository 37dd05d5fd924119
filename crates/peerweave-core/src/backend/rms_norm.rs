//! RMSNorm after an all-reduce: the parameters, and the computation of one row on a CPU.

use super::Place;
use peerweave_types::{DType, F8E4M3, bf16, f16};
use std::fmt;

/// The parameters of RMSNorm in an all-reduce with RMSNorm
/// ([`CollectiveKind::AllReduceRmsNorm`](super::CollectiveKind::AllReduceRmsNorm)). The operation
/// also has the parameters of an all-reduce. The input consists of rows.
///
/// `x = sum + residual` replaces the residual, where `sum` is the sum of the inputs of all ranks.
/// The result is `y = x · weight / √(mean(x²) + epsilon)`, where the mean is taken over a row.
/// `sum` is rounded to the element type, as in an all-reduce. Then `x` and `y` are computed in
/// `f32`, and each is rounded once.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    /// The memory of the residual, which has as many elements as the input.
    pub residual: Place,
    /// The memory of the weight, which has as many elements as a row.
    pub weight: Place,
    /// The number of elements in a row: 1 to [`RmsNorm::MOST_HIDDEN`].
    pub hidden: usize,
    /// The positive, finite number that is added to the mean of the squares. The number is not
    /// subnormal.
    pub epsilon: f32,
    /// The size of an input element, in bytes.
    pub element_bytes: usize,
    /// How the result is quantised; `None` if the result has the element type of the input.
    pub quantization: Option<Quantization>,
}

/// A conversion of elements to 8-bit integers or 8-bit floats. Elements are divided by a scale,
/// rounded to the nearest value, and saturated.
#[derive(Clone, Copy, Debug)]
pub struct Quantization {
    /// The element type of the result: `F8E4M3` or `I8`.
    pub dtype: DType,
    /// The scale by which elements are divided.
    pub scale: NormScale,
}

/// The scale by which elements are divided before they are quantised.
#[derive(Clone, Copy, Debug)]
pub enum NormScale {
    /// One scale for all elements, which is positive and finite.
    Static(f32),
    /// One scale for each row: the largest absolute value in the row of the result, divided by the
    /// largest value of the quantised type. If the largest absolute value is below
    /// [`Quantization::SMALLEST_SCALED`], that bound is used instead. The operation writes the
    /// scales to this memory, one `f32` for each row.
    Rows(Place),
}

impl Quantization {
    /// Lower bound for the largest absolute value from which the scale of a row is computed. The
    /// bound prevents a scale of 0 for a row that contains only zeros.
    pub const SMALLEST_SCALED: f32 = 1.0 / 512.0;

    /// Returns the largest value of the quantised type, [`Quantization::dtype`].
    pub fn largest(&self) -> f32 {
        if self.dtype == DType::I8 { 127.0 } else { F8E4M3::MAX.to_f32() }
    }

    fn quantized(&self, value: f32) -> u8 {
        match self.dtype {
            DType::I8 => value.round_ties_even() as i8 as u8,
            _ => F8E4M3::from_f32(value).to_bits(),
        }
    }
}

impl RmsNorm {
    /// The maximum number of elements in a row.
    pub const MOST_HIDDEN: usize = (1 << 24) - 1;

    /// Encodes the parameters that must be the same on all ranks as one integer, for
    /// [`CollectiveShape::detail`](super::CollectiveShape::detail). These are the epsilon, the
    /// length of a row, and the kind of quantisation.
    pub fn detail(&self) -> u64 {
        let output = match &self.quantization {
            None => 0,
            Some(Quantization { dtype, scale }) => {
                1 | u64::from(*dtype == DType::I8) << 1 | u64::from(matches!(scale, NormScale::Rows(_))) << 2
            }
        };
        u64::from(self.epsilon.to_bits()) | (self.hidden as u64) << 32 | output << 56
    }

    /// Formats the parameters of RMSNorm that [`RmsNorm::detail`](Self::detail) has encoded as
    /// `detail`.
    pub(super) fn describe(detail: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (epsilon, hidden, output) = (f32::from_bits(detail as u32), detail >> 32 & 0xff_ffff, detail >> 56);
        write!(f, " in rows of {hidden} elements with epsilon {epsilon:?}")?;
        if output & 1 != 0 {
            f.write_str(if output & 2 != 0 { ", quantized to i8" } else { ", quantized to f8e4m3" })?;
            f.write_str(if output & 4 != 0 { " with one scale for each row" } else { " with one scale for all rows" })?;
        }
        Ok(())
    }

    /// Returns the size of a result element, in bytes.
    pub fn output_bytes(&self) -> usize {
        if self.quantization.is_some() { 1 } else { self.element_bytes }
    }

    /// Computes one row on the calling thread. `dtype` is the element type: `F16`, `BF16` or `F32`.
    /// Adds `sum` to `residual`, and stores the normalised and, if requested, quantised row in
    /// `output`. Returns the scale of the row, which is 1 if the result is not quantised.
    ///
    /// # Panics
    /// Panics if the length of a slice is not the length of a row, or if `dtype` is none of the
    /// three types.
    pub fn row(&self, dtype: DType, sum: &[u8], residual: &mut [u8], weight: &[u8], output: &mut [u8]) -> f32 {
        fn two(bytes: &[u8]) -> [u8; 2] {
            [bytes[0], bytes[1]]
        }
        match dtype {
            DType::F16 => {
                let of = |bytes: &[u8]| f16::from_le_bytes(two(bytes)).to_f32();
                self.row_by(
                    of,
                    |value, to| to.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
                    sum,
                    residual,
                    weight,
                    output,
                )
            }
            DType::BF16 => {
                let of = |bytes: &[u8]| bf16::from_le_bytes(two(bytes)).to_f32();
                self.row_by(
                    of,
                    |value, to| to.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
                    sum,
                    residual,
                    weight,
                    output,
                )
            }
            _ => {
                assert_eq!(dtype, DType::F32, "peerweave-core bug: RMSNorm of {dtype} elements, expected f16, bf16 or f32");
                let of = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                self.row_by(of, |value, to| to.copy_from_slice(&value.to_le_bytes()), sum, residual, weight, output)
            }
        }
    }

    fn row_by(
        &self,
        of: impl Fn(&[u8]) -> f32,
        store: impl Fn(f32, &mut [u8]),
        sum: &[u8],
        residual: &mut [u8],
        weight: &[u8],
        output: &mut [u8],
    ) -> f32 {
        let size = self.element_bytes;
        let bytes = self.hidden * size;
        assert_eq!(
            (sum.len(), residual.len(), weight.len()),
            (bytes, bytes, bytes),
            "peerweave-core bug: the sum, residual and weight of an RMSNorm row must each have {bytes} bytes"
        );
        assert_eq!(
            output.len(),
            self.hidden * self.output_bytes(),
            "peerweave-core bug: the result of an RMSNorm row has the wrong number of bytes"
        );
        let (mut squares, mut largest) = (0.0_f64, 0.0_f32);
        for ((sum, residual), weight) in
            sum.chunks_exact(size).zip(residual.chunks_exact_mut(size)).zip(weight.chunks_exact(size))
        {
            store(of(sum) + of(residual), residual);
            let x = of(residual);
            squares += f64::from(x) * f64::from(x);
            largest = largest.max((x * of(weight)).abs());
        }
        let factor = (1.0 / (squares / self.hidden as f64 + f64::from(self.epsilon)).sqrt()) as f32;
        let scale = match &self.quantization {
            None => 1.0,
            Some(Quantization { scale: NormScale::Static(scale), .. }) => *scale,
            Some(to) => (largest * factor).max(Quantization::SMALLEST_SCALED) / to.largest(),
        };
        let inverse = 1.0 / scale;
        let elements = residual.chunks_exact(size).zip(weight.chunks_exact(size)).map(|(x, weight)| of(x) * of(weight) * factor);
        for (y, to) in elements.zip(output.chunks_exact_mut(self.output_bytes())) {
            match &self.quantization {
                None => store(y, to),
                Some(quantization) => to[0] = quantization.quantized(y * inverse),
            }
        }
        scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn norm(hidden: usize, quantization: Option<Quantization>) -> RmsNorm {
        let nowhere = Place::Private(std::ptr::null_mut());
        RmsNorm { residual: nowhere, weight: nowhere, hidden, epsilon: 1e-6, element_bytes: 4, quantization }
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn rms_norm_divides_a_row_by_the_root_mean_square() {
        let (sum, weight) = (bytes(&[1.0, 3.0]), bytes(&[1.0, 2.0]));
        let (mut residual, mut output) = (bytes(&[2.0, 1.0]), vec![0; 8]);
        norm(2, None).row(DType::F32, &sum, &mut residual, &weight, &mut output);
        assert_eq!(residual, bytes(&[3.0, 4.0]));
        let root = (12.5_f64 + 1e-6).sqrt();
        for (found, wanted) in output.chunks_exact(4).zip([3.0 / root, 8.0 / root]) {
            let found = f32::from_le_bytes(found.try_into().expect("the chunk has four bytes"));
            assert!((f64::from(found) - wanted).abs() < 1e-6, "{found}, expected {wanted}");
        }
    }

    #[test]
    fn row_scale_maps_largest_element_to_largest_quantized_value() {
        for (dtype, largest, wanted) in [(DType::I8, 127.0, [127, 0x81]), (DType::F8E4M3, 448.0, [0x7e, 0xfe])] {
            let quantization = Quantization { dtype, scale: NormScale::Rows(Place::Private(std::ptr::null_mut())) };
            let (mut residual, mut output) = (bytes(&[0.0, 0.0]), vec![0; 2]);
            let norm = norm(2, Some(quantization));
            let scale = norm.row(DType::F32, &bytes(&[5.0, -5.0]), &mut residual, &bytes(&[1.0; 2]), &mut output);
            assert_eq!(output, wanted);
            assert!((scale * largest - 1.0).abs() < 1e-6, "the scale is {scale}, expected 1 / {largest}");
            let scale = norm.row(DType::F32, &bytes(&[0.0; 2]), &mut bytes(&[0.0; 2]), &bytes(&[1.0; 2]), &mut output);
            assert_eq!((scale, &output[..]), (Quantization::SMALLEST_SCALED / largest, &[0, 0][..]));
        }
    }

    #[test]
    fn rms_norm_parameters_that_differ_have_different_encodings() {
        let rows = NormScale::Rows(Place::Private(std::ptr::null_mut()));
        let quantized = |dtype, scale| norm(8, Some(Quantization { dtype, scale })).detail();
        let details = [
            norm(8, None).detail(),
            norm(9, None).detail(),
            RmsNorm { epsilon: 1e-5, ..norm(8, None) }.detail(),
            quantized(DType::I8, rows),
            quantized(DType::F8E4M3, rows),
            quantized(DType::I8, NormScale::Static(1.0)),
            quantized(DType::F8E4M3, NormScale::Static(1.0)),
        ];
        for (index, detail) in details.iter().enumerate() {
            assert!(!details[..index].contains(detail), "case {index} has the encoding of an earlier case");
        }
    }
}
