//! The capabilities of a backend, as data.

use super::CollectiveKind;
use peerweave_types::{DType, ReduceOp};

/// The capabilities of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caps {
    /// The size of the symmetric heap of each PE, in bytes.
    pub heap_bytes: usize,
    /// How the backend transfers ordinary (private) buffers between PEs.
    pub private_buffers: PrivateBuffers,
    /// Whether PEs compare their collective calls with each other before the calls run.
    pub call_checking: CallChecking,
    /// The number of teams that a PE can belong to at the same time, including the world.
    pub max_teams: usize,
    /// The largest alignment of an allocation, in bytes: a power of two.
    pub max_align_bytes: usize,
    /// A description of the instruction set or the device that the backend uses for computations.
    pub compute: String,
    /// The device on which [`OnDevice`](crate::OnDevice) memory must lie, as an ordinal in this
    /// process. `None` if operations accept no device memory.
    pub device: Option<u32>,
    /// The effect of a failed operation on later operations of the same stream or team.
    pub after_failure: AfterFailure,
    /// Whether the backend supports reductions by a function that the caller passes
    /// ([`ReduceFn`](crate::ReduceFn)).
    pub reduce_functions: bool,
    /// How the backend computes each reduction: one entry for each defined combination of
    /// collective, element type and reduction. See [`Caps::reduction`].
    pub reductions: Vec<ReductionCaps>,
}

impl Caps {
    /// Returns minimal capabilities, which a backend can extend. Private buffers are staged, and
    /// PEs do not compare their calls. Allocations are aligned to at most 4096 bytes. Neither
    /// device memory nor reductions by a [`ReduceFn`](crate::ReduceFn) are supported. Streams skip
    /// operations after a failure. Nothing is guaranteed about reductions.
    pub fn new(heap_bytes: usize, max_teams: usize, compute: impl Into<String>) -> Self {
        Self {
            heap_bytes,
            private_buffers: PrivateBuffers::Staged,
            call_checking: CallChecking::Never,
            max_teams,
            max_align_bytes: 4096,
            compute: compute.into(),
            device: None,
            after_failure: AfterFailure::SkipsStream,
            reduce_functions: false,
            reductions: Self::reductions_with(|_| {}),
        }
    }

    /// Returns a list for [`Caps::reductions`], with one entry for each defined combination of
    /// collective, element type and reduction. Calls `describe` with each entry. `describe` may
    /// change the properties of the entry. By default, an entry has these properties: the order of
    /// the operands and the treatment of NaN are unspecified, ranks may get different bits, and
    /// elements are accumulated in the element type.
    pub fn reductions_with(mut describe: impl FnMut(&mut ReductionCaps)) -> Vec<ReductionCaps> {
        let mut all = Vec::new();
        for kind in CollectiveKind::ALL.into_iter().filter(|kind| kind.reduces()) {
            for dtype in DType::ALL {
                let is_defined = |op: &ReduceOp| op.accepts(dtype) && !(kind.is_scan() && *op == ReduceOp::Avg);
                for op in ReduceOp::ALL.into_iter().filter(is_defined) {
                    let (order, accumulator, nan) = (ReductionOrder::Unspecified, AccumulatorType::Element, NanRule::Unspecified);
                    let mut caps = ReductionCaps { kind, dtype, op, order, same_bits: false, accumulator, nan };
                    describe(&mut caps);
                    all.push(caps);
                }
            }
        }
        all
    }

    /// Returns how the backend computes the reduction `op` in the collective `kind`, for elements
    /// of type `dtype`. Returns `None` if `op` is not defined for `dtype`, if the backend does not
    /// support the combination, or if `kind` does not reduce.
    ///
    /// ```
    /// use peerweave::backend::CollectiveKind;
    /// use peerweave::{DType, ReduceOp, World};
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let sum = world.caps().reduction(CollectiveKind::AllReduce, DType::F32, ReduceOp::Sum).expect("it is defined");
    /// println!("every PE gets the same bits: {}", sum.same_bits);
    /// assert!(world.caps().reduction(CollectiveKind::Barrier, DType::F32, ReduceOp::Sum).is_none());
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    pub fn reduction(&self, kind: CollectiveKind, dtype: DType, op: ReduceOp) -> Option<ReductionCaps> {
        self.reductions.iter().find(|caps| (caps.kind, caps.dtype, caps.op) == (kind, dtype, op)).copied()
    }
}

/// Properties of a reduction on a backend, such as the order of the operands and the accumulator
/// type. Each value applies to one collective, one element type and one [`ReduceOp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReductionCaps {
    /// The collective that reduces the elements.
    pub kind: CollectiveKind,
    /// The type of the elements that are reduced.
    pub dtype: DType,
    /// The reduction, such as a sum.
    pub op: ReduceOp,
    /// The order in which the operands of the ranks are combined. For floats, the order affects
    /// rounding.
    pub order: ReductionOrder,
    /// Whether all ranks that get a result get the same bits.
    pub same_bits: bool,
    /// The type in which elements are accumulated.
    pub accumulator: AccumulatorType,
    /// How the reduction treats operands that are NaN.
    pub nan: NanRule,
}

/// The order in which a reduction combines the operands of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReductionOrder {
    /// Operands are combined in rank order, starting at rank 0, for every element. The result does
    /// not depend on the size or the location of the buffers.
    Rank,
    /// The order may differ among elements, sizes and calls.
    Unspecified,
}

/// The type in which a reduction accumulates elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccumulatorType {
    /// Elements are accumulated in the element type.
    Element,
    /// Elements are accumulated in `f32`, and the result is rounded to the element type once, at
    /// the end.
    F32RoundedOnce,
}

/// How a reduction of floats treats operands that are NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NanRule {
    /// `Min` and `Max` ignore a NaN if another operand is a number. If the result is NaN, it is the
    /// positive quiet NaN without payload.
    IgnoredByMinMaxCanonical,
    /// `Min` and `Max` ignore a NaN if another operand is a number. If the result is NaN, the
    /// payload of the NaN is unspecified.
    IgnoredByMinMax,
    /// The treatment of NaN is unspecified.
    Unspecified,
}

/// The effect of a failed operation on later operations of the same stream or team.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterFailure {
    /// Operations that follow the failed operation on the same stream do not run. They fail with
    /// [`Error::Skipped`](crate::Error::Skipped).
    SkipsStream,
    /// The stream continues. The team of the failed operation or kernel is poisoned: later
    /// operations of that team fail ([`Team::failure`](crate::Team::failure)).
    PoisonsTeam,
}

/// How a backend transfers ordinary buffers between PEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrivateBuffers {
    /// The backend copies buffers through memory that the source PE and the target PE can access.
    /// This needs one more copy than a direct transfer.
    Staged,
    /// The operating system copies the data directly from the memory of the process that owns the
    /// buffer (cross-memory attach).
    CrossMemoryAttach,
    /// Ordinary buffers are not supported: operations on ordinary buffers return an error.
    Refused,
}

/// Whether PEs compare their collective calls (operation, count, type, root and reduction) with
/// each other before the calls run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallChecking {
    /// Before every collective call, the PEs check that they make the same call. The check cannot
    /// be disabled.
    Always,
    /// PEs compare every collective call. The check is optional in this backend, and has been
    /// enabled.
    On,
    /// PEs do not compare calls. The check is optional in this backend, and is disabled.
    Off,
    /// The backend never checks that the PEs make the same collective call.
    Never,
}
