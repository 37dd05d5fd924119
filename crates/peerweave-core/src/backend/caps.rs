//! The capabilities of a backend, as data.

use super::CollectiveKind;
use peerweave_types::{DType, ReduceOp};

/// The capabilities of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caps {
    /// The size of the symmetric heap of each PE, in bytes.
    pub heap_bytes: usize,
    /// How ordinary (private) buffers take part in operations between PEs.
    pub private_buffers: PrivateBuffers,
    /// Whether PEs compare their calls before they run them.
    pub call_checking: CallChecking,
    /// The number of teams that a PE can belong to at the same time, including the world.
    pub max_teams: usize,
    /// The largest alignment of an allocation, in bytes: a power of two.
    pub max_align_bytes: usize,
    /// A description of the instruction set or device that computes.
    pub compute: String,
    /// The device whose memory is accepted as an operand ([`OnDevice`](crate::OnDevice)), by its
    /// number in this process; `None` if no memory of a device is accepted.
    pub device: Option<u32>,
    /// The behavior of streams after an operation has failed.
    pub after_failure: AfterFailure,
    /// Whether a function of the caller can combine elements
    /// ([`ReduceFn`](crate::ReduceFn)).
    pub reduce_functions: bool,
    /// How reductions are computed, one entry for each collective, type and reduction that is
    /// defined. See [`Caps::reduction`].
    pub reductions: Vec<ReductionCaps>,
}

impl Caps {
    /// Returns minimal capabilities, which a backend can extend: staged private buffers, no call
    /// checking, allocations aligned to at most 4096 bytes, no device memory, no reductions by
    /// functions of the caller, streams that skip operations after a failure, and no guarantees
    /// about reductions.
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

    /// Returns the entries of [`Caps::reductions`], after `describe` has changed each of them.
    /// Before the change, an entry guarantees nothing: its order and its NaN rule are unspecified,
    /// bits may differ among ranks, and elements are accumulated in the element type.
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

    /// Returns how the backend computes a reduction. Returns `None` if the reduction is not defined
    /// for the type, if the backend does not support it, or if `kind` does not reduce.
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

/// How a backend computes one reduction of one type in one collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReductionCaps {
    /// The collective.
    pub kind: CollectiveKind,
    /// The element type.
    pub dtype: DType,
    /// The reduction.
    pub op: ReduceOp,
    /// The order in which the operands of the ranks are combined, which decides how floats are
    /// rounded.
    pub order: ReductionOrder,
    /// Whether every rank that gets a result gets the same bits.
    pub same_bits: bool,
    /// The type in which elements are combined.
    pub accumulator: AccumulatorType,
    /// The result if operands are NaN.
    pub nan: NanRule,
}

/// The order in which a reduction combines the operands of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReductionOrder {
    /// From rank 0 upward, for every element. The result does not depend on the size or location of
    /// the buffers.
    Rank,
    /// The order may differ among elements, sizes and calls.
    Unspecified,
}

/// The type in which a reduction combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccumulatorType {
    /// The element type.
    Element,
    /// `f32`, and the result is rounded once.
    F32RoundedOnce,
}

/// The result of a reduction of floats if operands are NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NanRule {
    /// `Min` and `Max` ignore a NaN if another operand is a number. A NaN result is the positive
    /// quiet NaN without payload.
    IgnoredByMinMaxCanonical,
    /// `Min` and `Max` ignore a NaN if another operand is a number. The payload of a NaN result is
    /// unspecified.
    IgnoredByMinMax,
    /// The treatment of NaN is unspecified.
    Unspecified,
}

/// The behavior of streams after an operation has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterFailure {
    /// Later operations of the stream do not run, and fail with
    /// [`Error::Skipped`](crate::Error::Skipped).
    SkipsStream,
    /// The stream continues. The team of a failed operation or kernel is poisoned: its later
    /// operations fail ([`Team::failure`](crate::Team::failure)).
    PoisonsTeam,
}

/// How ordinary buffers take part in operations between PEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrivateBuffers {
    /// Buffers are copied through memory that both PEs access, which costs one more copy.
    Staged,
    /// The operating system reads them from the memory of the other process.
    CrossMemoryAttach,
    /// Buffers cannot take part: operations on them return an error.
    Refused,
}

/// Whether PEs compare operation, count, type, root and reduction before they run a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallChecking {
    /// Every collective is compared.
    Always,
    /// The check is enabled, by `PEERWEAVE_CHECK_CALLS=1`.
    On,
    /// The check is disabled; `PEERWEAVE_CHECK_CALLS=1` enables it.
    Off,
    /// The backend has no such check.
    Never,
}
