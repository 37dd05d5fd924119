//! Reductions as arguments of calls, including `PreMulSum` with its scalar. `check/` checks that
//! the element type supports the reduction.

use peerweave_types::{Number, ReduceOp, Scalar};
use std::marker::PhantomData;

/// A reduction for elements of type `T`: a [`ReduceOp`], or a sum in which each PE multiplies its
/// elements by a scalar.
///
/// Calls take an `impl Into<Reduction<T>>`, so a `ReduceOp` can be passed directly.
///
/// ```
/// use peerweave::{Reduction, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let mut x = [1.5f32, 2.0];
/// world.team().all_reduce_in_place_blocking(&mut x, Reduction::pre_mul_sum(2.0))?;
/// assert_eq!(x, [3.0, 4.0].map(|y| y * world.n_pes() as f32));
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduction<T> {
    op: ReduceOp,
    /// The bits of the scalar that was passed to [`Reduction::pre_mul_sum`]; `None` for all other
    /// reductions.
    scalar: Option<u64>,
    element: PhantomData<fn() -> T>,
}

impl<T: Scalar> Reduction<T> {
    /// Returns a sum in which the elements of this PE are multiplied by `scalar`. Each PE may pass
    /// a different scalar.
    pub fn pre_mul_sum(scalar: T) -> Self {
        Self { op: ReduceOp::PreMulSum, scalar: Some(scalar.to_word()), element: PhantomData }
    }
}

impl<T> Reduction<T> {
    /// Returns the `ReduceOp` of this reduction; [`ReduceOp::PreMulSum`] for a sum with a scalar.
    pub const fn op(&self) -> ReduceOp {
        self.op
    }
}

/// Converts a `ReduceOp` to a reduction without a scalar. `ReduceOp::PreMulSum` needs a scalar, so
/// every call rejects a converted `PreMulSum`: use [`Reduction::pre_mul_sum`] instead.
impl<T> From<ReduceOp> for Reduction<T> {
    #[inline]
    fn from(op: ReduceOp) -> Self {
        Self { op, scalar: None, element: PhantomData }
    }
}

/// A [`Reduction`] whose element type is erased.
#[derive(Clone, Copy)]
pub(crate) struct ErasedReduction {
    pub(crate) op: ReduceOp,
    pub(crate) scalar: Option<u64>,
    /// Whether `op` is defined for the element type.
    pub(crate) accepted: bool,
    /// The name of the element type, for errors.
    pub(crate) element: &'static str,
}

impl ErasedReduction {
    /// The value of `Collective::scalar` in operations that use no scalar.
    pub(crate) const NO_SCALAR: u64 = 0;
}

impl<T: Number> From<Reduction<T>> for ErasedReduction {
    #[inline]
    fn from(reduction: Reduction<T>) -> Self {
        let Reduction { op, scalar, .. } = reduction;
        Self { op, scalar, accepted: T::accepts(op), element: std::any::type_name::<T>() }
    }
}
