//! The parameters that a caller passes to an all-reduce with RMSNorm.
#![allow(private_interfaces, reason = "only methods of sealed traits use `Span`, so only this crate uses `Span`")]

use crate::arguments::span::{Argument, Dest, Span, StreamDest};
use peerweave_types::{Element, F8E4M3, Number, bf16, f16};

mod sealed {
    use super::ErasedScale;

    pub trait Norm {}
    pub trait Quantized {}

    pub trait Scale {
        #[doc(hidden)]
        fn erased(&mut self) -> ErasedScale<'_>;
    }
}

/// An [`OutputScale`] whose type is erased: the scale of a quantised result. Either all rows have
/// the same scale, which is a number, or each row has its own scale, which is stored in memory.
pub(crate) enum ErasedScale<'a> {
    Static(f32),
    Rows(Span<'a>),
}

/// An element type that [`Team::all_reduce_rms_norm`](crate::Team::all_reduce_rms_norm) supports:
/// `f16`, `bf16` or `f32`.
#[diagnostic::on_unimplemented(
    message = "RMSNorm is not defined for rows of `{Self}`",
    note = "rows consist of elements of type `f16`, `bf16` or `f32`"
)]
pub trait NormElement: Number + sealed::Norm {}

/// An element type to which an all-reduce with RMSNorm can quantise its result: [`F8E4M3`] or `i8`.
#[diagnostic::on_unimplemented(
    message = "the result of RMSNorm cannot be quantized to `{Self}`",
    note = "quantized results have elements of type `F8E4M3` or `i8`"
)]
pub trait QuantizedElement: Element + sealed::Quantized {}

impl sealed::Norm for f16 {}
impl sealed::Norm for bf16 {}
impl sealed::Norm for f32 {}
impl NormElement for f16 {}
impl NormElement for bf16 {}
impl NormElement for f32 {}
impl sealed::Quantized for F8E4M3 {}
impl sealed::Quantized for i8 {}
impl QuantizedElement for F8E4M3 {}
impl QuantizedElement for i8 {}

/// The parameters of RMSNorm, which computes `y = x · weight / √(mean(x²) + epsilon)` for each row
/// `x`.
///
/// `W` is the type of the memory that contains the weight (also called gamma). The weight has as
/// many elements as a row.
///
/// ```
/// use peerweave::{RmsNorm, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let weight = [1.0f32, 0.5];
/// let (partial, mut residual, mut normed) = ([4.0f32, 0.0], [3.0, 4.0], [0.0; 2]);
/// let norm = RmsNorm::new(&weight).epsilon(1e-5);
/// world.team().all_reduce_rms_norm_blocking(&partial, &mut residual, &mut normed, norm)?;
/// assert_eq!(residual, [3.0 + 4.0 * world.n_pes() as f32, 4.0]);
/// # assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "an `RmsNorm` has no effect until it is passed to `Team::all_reduce_rms_norm`"]
pub struct RmsNorm<W> {
    pub(crate) weight: W,
    pub(crate) epsilon: f32,
}

impl<W> RmsNorm<W> {
    /// The epsilon that [`RmsNorm::new`] sets.
    pub const DEFAULT_EPSILON: f32 = 1e-6;

    /// Creates the parameters of RMSNorm with this weight and the default epsilon. A row has as
    /// many elements as the weight.
    pub const fn new(weight: W) -> Self {
        Self { weight, epsilon: Self::DEFAULT_EPSILON }
    }

    /// Sets epsilon, the number that is added to the mean of the squares. Epsilon must be positive,
    /// finite and not subnormal, and must be the same on all ranks.
    pub fn epsilon(mut self, epsilon: f32) -> Self {
        self.epsilon = epsilon;
        self
    }
}

/// The scale by which the result of RMSNorm is divided before quantisation: an `f32` that applies
/// to all rows, or [`RowScales`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the scale of a quantized result",
    note = "pass an `f32` for all rows, or `RowScales(memory)`: the operation writes one `f32` scale for each row to `memory`"
)]
pub trait OutputScale: sealed::Scale {}

/// An [`OutputScale`] that a stream-ordered operation accepts. If the scale is [`RowScales`], the
/// stream keeps the memory for the scales allocated while the operation is pending.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the scale of a quantized result in a stream-ordered operation",
    note = "pass an `f32` for all rows, or `RowScales(memory)`, where `memory` is a `&Symmetric<f32>`, `&Buffer<f32>` or `&OnDevice<f32>`"
)]
pub trait StreamOutputScale: OutputScale {}

/// Memory to which an all-reduce with RMSNorm writes one scale for each row of its result. The
/// scale is the largest absolute value in the normalised row before quantisation, divided by the
/// largest value of the quantised type. `RowScales` is an [`OutputScale`].
///
/// A row whose absolute values are all below 1/512 is scaled as if its largest absolute value were
/// 1/512.
#[derive(Clone, Copy, Debug)]
pub struct RowScales<S>(pub S);

impl sealed::Scale for f32 {
    fn erased(&mut self) -> ErasedScale<'_> {
        ErasedScale::Static(*self)
    }
}

impl OutputScale for f32 {}
impl StreamOutputScale for f32 {}

impl<S: Argument<f32>> sealed::Scale for RowScales<S> {
    fn erased(&mut self) -> ErasedScale<'_> {
        ErasedScale::Rows(self.0.span())
    }
}

impl<S: Dest<f32>> OutputScale for RowScales<S> {}
impl<S: StreamDest<f32>> StreamOutputScale for RowScales<S> {}
