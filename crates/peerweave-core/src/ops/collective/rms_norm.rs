//! One operation that runs an all-reduce, adds a residual, and applies RMSNorm.

use crate::arguments::span::{Dest, Source, StreamDest, StreamSource};
use crate::arguments::{NormElement, OutputScale, QuantizedElement, RmsNorm, StreamOutputScale};
use crate::backend::Keep;
use crate::check::{self, NormCall};
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::{Ticket, decode};
use crate::{Result, call};

/// All-reduce, addition of a residual, and RMSNorm: the last steps of each half of a
/// tensor-parallel transformer layer. If all GPUs of the team are in one host, one kernel does all
/// three steps. Otherwise, one kernel does the last two steps after a separate all-reduce. vLLM,
/// TensorRT-LLM and FlashInfer call this operation fused all-reduce, residual and RMSNorm.
///
/// The input consists of rows (tokens), each as long as the weight. For each row:
///
/// - `x = all_reduce(input) + residual` replaces the residual,
/// - `y = x · weight / √(mean(x²) + epsilon)` is the output.
///
/// The sum over the ranks is rounded to the element type, as in [`Team::all_reduce`]. `x` and `y`
/// are computed in `f32`, and each is rounded once. So the new residual has the same bits as if the
/// three steps were separate calls. All ranks get the same bits if their residuals, weights and
/// epsilons are equal.
///
/// # Collective
/// Every rank of the team must make the call, with the same element type, lengths, epsilon and
/// quantisation. All ranks must make the collective calls of this team in the same order. The
/// residual and the weight must have the same contents on all ranks; the call does not check the
/// contents.
///
/// # GPUs
/// The length of a row must be a multiple of 16 bytes. Rows and weights in device memory must start
/// at multiples of 16 bytes. Otherwise the call fails with
/// [`Error::Unsupported`](crate::Error::Unsupported). The host backend has no such limit.
impl Team {
    /// Sums the elements of all ranks, adds the residual, and normalises each row.
    ///
    /// # Shapes
    /// The weight in `norm` has `hidden` elements. `input`, `residual` and `output` have
    /// `rows × hidden` elements each. No two of these four buffers overlap, except that `input` may
    /// overlap the weight.
    ///
    /// # Errors
    /// As for [`Team::barrier`]. Also:
    /// - [`Misuse`](crate::Misuse) for a wrong length, and for buffers that overlap, belong to
    ///   another world or have been released.
    /// - [`Misuse`](crate::Misuse) for an epsilon that is not a positive, finite number, or that is
    ///   subnormal.
    /// - [`Error::Unsupported`](crate::Error::Unsupported) on GPUs if the length of a row, or the
    ///   start of a buffer in device memory, is not a multiple of 16 bytes.
    ///
    /// # Example
    /// ```
    /// use peerweave::{RmsNorm, World, bf16};
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let (team, stream) = (world.team(), world.stream()?);
    /// let (rows, hidden) = (3, 64);
    /// let [partial, residual, normed] = [(); 3].map(|()| world.alloc_zeroed::<bf16>(rows * hidden));
    /// let (partial, residual, normed) = (partial?, residual?, normed?);
    /// let weight = world.alloc::<bf16>(hidden)?;
    /// partial.fill(bf16::from_f32(1.0))?; // the product of this rank's shard of a matrix
    /// residual.fill(bf16::from_f32(2.0))?;
    /// weight.fill(bf16::from_f32(0.5))?;
    /// let norm = RmsNorm::new(&weight).epsilon(1e-5);
    /// team.all_reduce_rms_norm(&stream, &partial, &residual, &normed, norm)?;
    /// stream.synchronize()?;
    /// assert_eq!(residual.load(0)?.to_f32(), 2.0 + team.size() as f32);
    /// assert_eq!(normed.load(0)?.to_f32(), 0.5); // all elements of a row are equal
    /// for buffer in [partial, residual, normed, weight] {
    ///     buffer.release()?;
    /// }
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    pub fn all_reduce_rms_norm<T: NormElement>(
        &self,
        stream: &Stream,
        mut input: impl StreamSource<T>,
        mut residual: impl StreamDest<T>,
        mut output: impl StreamDest<T>,
        mut norm: RmsNorm<impl StreamSource<T>>,
    ) -> Result<Ticket> {
        let (input, residual, output) = (input.span(), residual.span(), Some(output.span()));
        let (epsilon, weight) = (norm.epsilon, norm.weight.span());
        self.norm("all_reduce_rms_norm", stream, NormCall { input, residual, output, weight, epsilon, scale: None })
    }

    /// Like [`Team::all_reduce_rms_norm`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::all_reduce_rms_norm`].
    pub fn all_reduce_rms_norm_blocking<T: NormElement>(
        &self,
        mut input: impl Source<T>,
        mut residual: impl Dest<T>,
        mut output: impl Dest<T>,
        mut norm: RmsNorm<impl Source<T>>,
    ) -> Result<()> {
        let (input, residual, output) = (input.span(), residual.span(), Some(output.span()));
        let (epsilon, weight) = (norm.epsilon, norm.weight.span());
        self.norm_blocking("all_reduce_rms_norm_blocking", NormCall { input, residual, output, weight, epsilon, scale: None })
    }

    /// Like [`Team::all_reduce_rms_norm`], but the output replaces the input in `buffer`.
    ///
    /// # Shapes
    /// The weight in `norm` has `hidden` elements. `buffer` and `residual` have `rows × hidden`
    /// elements each. No two of these three buffers overlap.
    ///
    /// # Errors
    /// As for [`Team::all_reduce_rms_norm`].
    pub fn all_reduce_rms_norm_in_place<T: NormElement>(
        &self,
        stream: &Stream,
        mut buffer: impl StreamDest<T>,
        mut residual: impl StreamDest<T>,
        mut norm: RmsNorm<impl StreamSource<T>>,
    ) -> Result<Ticket> {
        let (input, residual, output) = (buffer.span(), residual.span(), None);
        let (epsilon, weight) = (norm.epsilon, norm.weight.span());
        self.norm("all_reduce_rms_norm_in_place", stream, NormCall { input, residual, output, weight, epsilon, scale: None })
    }

    /// Like [`Team::all_reduce_rms_norm_in_place`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::all_reduce_rms_norm`].
    pub fn all_reduce_rms_norm_in_place_blocking<T: NormElement>(
        &self,
        mut buffer: impl Dest<T>,
        mut residual: impl Dest<T>,
        mut norm: RmsNorm<impl Source<T>>,
    ) -> Result<()> {
        const CALL: &str = "all_reduce_rms_norm_in_place_blocking";
        let (input, residual, output) = (buffer.span(), residual.span(), None);
        let (epsilon, weight) = (norm.epsilon, norm.weight.span());
        self.norm_blocking(CALL, NormCall { input, residual, output, weight, epsilon, scale: None })
    }

    /// Like [`Team::all_reduce_rms_norm`], but the elements of the output are 8-bit floats or 8-bit
    /// integers. Each result of RMSNorm is an `f32`, which is divided by the scale, rounded to
    /// nearest even, and saturated.
    ///
    /// `scale` is an `f32` or [`RowScales`](crate::RowScales). An `f32` is the scale of all rows,
    /// and may differ between ranks. For `RowScales`, the call computes a scale for each row, and
    /// stores the scales in the memory that `RowScales` contains.
    ///
    /// # Shapes
    /// As for [`Team::all_reduce_rms_norm`]. The memory that `RowScales` contains has `rows`
    /// elements of type `f32`.
    ///
    /// # Errors
    /// As for [`Team::all_reduce_rms_norm`]; [`Misuse`](crate::Misuse) for a scale that is not
    /// positive and finite, or whose inverse is not finite.
    ///
    /// # Example
    /// ```
    /// use peerweave::{F8E4M3, RmsNorm, RowScales, World};
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let team = world.team();
    /// let (partial, weight) = ([1.0f32; 32], [1.0f32; 16]);
    /// let (mut residual, mut output, mut scales) = ([0.0f32; 32], [F8E4M3::default(); 32], [0.0f32; 2]);
    /// team.all_reduce_rms_norm_quantized_blocking(
    ///     &partial,
    ///     &mut residual,
    ///     &mut output,
    ///     RmsNorm::new(&weight),
    ///     RowScales(&mut scales),
    /// )?;
    /// assert!((output[20].to_f32() * scales[1] - 1.0).abs() < 1e-5); // all elements of a row are equal
    /// let norm = RmsNorm::new(&weight);
    /// team.all_reduce_rms_norm_quantized_blocking(&partial, &mut residual, &mut output, norm, 0.25)?;
    /// assert_eq!(output[20].to_f32(), 4.0);
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    pub fn all_reduce_rms_norm_quantized<T: NormElement, Q: QuantizedElement>(
        &self,
        stream: &Stream,
        mut input: impl StreamSource<T>,
        mut residual: impl StreamDest<T>,
        mut output: impl StreamDest<Q>,
        mut norm: RmsNorm<impl StreamSource<T>>,
        mut scale: impl StreamOutputScale,
    ) -> Result<Ticket> {
        const CALL: &str = "all_reduce_rms_norm_quantized";
        let (input, residual, output) = (input.span(), residual.span(), Some(output.span()));
        let (epsilon, weight, scale) = (norm.epsilon, norm.weight.span(), Some(scale.erased()));
        self.norm(CALL, stream, NormCall { input, residual, output, weight, epsilon, scale })
    }

    /// Like [`Team::all_reduce_rms_norm_quantized`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::all_reduce_rms_norm_quantized`].
    pub fn all_reduce_rms_norm_quantized_blocking<T: NormElement, Q: QuantizedElement>(
        &self,
        mut input: impl Source<T>,
        mut residual: impl Dest<T>,
        mut output: impl Dest<Q>,
        mut norm: RmsNorm<impl Source<T>>,
        mut scale: impl OutputScale,
    ) -> Result<()> {
        const CALL: &str = "all_reduce_rms_norm_quantized_blocking";
        let (input, residual, output) = (input.span(), residual.span(), Some(output.span()));
        let (epsilon, weight, scale) = (norm.epsilon, norm.weight.span(), Some(scale.erased()));
        self.norm_blocking(CALL, NormCall { input, residual, output, weight, epsilon, scale })
    }

    fn norm(&self, call: &'static str, stream: &Stream, given: NormCall<'_>) -> Result<Ticket> {
        let (prepared, held) = check::rms_norm(call, self, given)?;
        check::stream(call, self, stream)?;
        let submitted = call::enqueue(stream, &prepared, &|| Keep::many(held.clone()))?;
        Ok(Ticket::new(submitted, &self.inner.shared, decode::nothing))
    }

    fn norm_blocking(&self, call: &'static str, given: NormCall<'_>) -> Result<()> {
        let (prepared, held) = check::rms_norm(call, self, given)?;
        call::run_kept(&self.inner.shared, &prepared, &|| Keep::many(held.clone()))
    }
}
