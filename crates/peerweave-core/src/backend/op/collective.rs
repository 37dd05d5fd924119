//! Collective operations as plain data. [`Collective::count`] documents what the count means for
//! each kind of collective.

use super::Place;
use crate::backend::{RmsNorm, TeamId};
use peerweave_types::{DType, Rank, ReduceOp};
use std::fmt;
use std::sync::Arc;

/// The kind of a collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names of the collectives need no explanation")]
pub enum CollectiveKind {
    Barrier = 0,
    Sync = 1,
    AllReduce = 2,
    Reduce = 3,
    Broadcast = 4,
    AllGather = 5,
    ReduceScatter = 6,
    AllToAll = 7,
    AllToAllV = 8,
    Gather = 9,
    Scatter = 10,
    AllGatherV = 11,
    GatherV = 12,
    ScatterV = 13,
    Scan = 14,
    ExclusiveScan = 15,
    AllToAllStrided = 16,
    AllReduceRmsNorm = 17,
}

impl CollectiveKind {
    /// All kinds of collectives.
    pub const ALL: [Self; 18] = [
        Self::Barrier,
        Self::Sync,
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::AllToAllV,
        Self::Gather,
        Self::Scatter,
        Self::AllGatherV,
        Self::GatherV,
        Self::ScatterV,
        Self::Scan,
        Self::ExclusiveScan,
        Self::AllToAllStrided,
        Self::AllReduceRmsNorm,
    ];

    /// Returns the name of the call that runs the collective.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Sync => "sync",
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::AllToAllV => "all_to_all_v",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllGatherV => "all_gather_v",
            Self::GatherV => "gather_v",
            Self::ScatterV => "scatter_v",
            Self::Scan => "scan",
            Self::ExclusiveScan => "exclusive_scan",
            Self::AllToAllStrided => "all_to_all_strided",
            Self::AllReduceRmsNorm => "all_reduce_rms_norm",
        }
    }

    /// Returns the kind whose `as u8` value is `number`; `None` if no kind has this value.
    pub const fn from_u8(number: u8) -> Option<Self> {
        if (number as usize) < Self::ALL.len() { Some(Self::ALL[number as usize]) } else { None }
    }

    /// Returns whether the collective combines elements by the reduction that the caller passes.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter | Self::Scan | Self::ExclusiveScan)
    }

    /// Returns whether the collective is a scan. In a scan, rank `r` gets the reduction of the
    /// operands of ranks 0 to `r`. In an exclusive scan, rank `r` gets the reduction of the
    /// operands of ranks 0 to `r - 1`; the buffers of rank 0 stay unchanged.
    pub const fn is_scan(self) -> bool {
        matches!(self, Self::Scan | Self::ExclusiveScan)
    }

    /// Returns whether the collective has a root.
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter | Self::GatherV | Self::ScatterV)
    }

    /// Returns whether the lengths of the parts in the buffers may differ between ranks. If so,
    /// [`Collective::counts`] contains these lengths.
    pub const fn has_counts(self) -> bool {
        matches!(self, Self::AllToAllV | Self::AllGatherV | Self::GatherV | Self::ScatterV)
    }
}

/// A collective operation, with the arguments that this PE passes. A field that the kind does not
/// use contains 0 or `None`, or another value that the field's documentation states.
///
/// In an in-place call, `send` and `recv` share bytes as listed here, where `rank` is this PE's
/// rank. In all other calls, `send` and `recv` do not overlap.
/// - all-reduce (also with RMSNorm), reduce, broadcast, scans, all-to-all, all-to-all-v: `send` and
///   `recv` are the same buffer;
/// - all-gather: `send` is part `rank` of `recv`;
/// - reduce-scatter: `recv` is part `rank` of `send`;
/// - gather, at the root: `send` is part `rank` of `recv`;
/// - scatter, at the root: `recv` is part `rank` of `send`;
/// - all-gather-v, gather-v, scatter-v: as for all-gather, gather and scatter, but `counts`
///   determines where part `rank` lies.
#[derive(Clone, Debug)]
pub struct Collective {
    /// The kind of collective.
    pub kind: CollectiveKind,
    /// The team that runs the collective.
    pub team: TeamId,
    /// The element type; `U8` for barrier and sync.
    pub dtype: DType,
    /// The reduction; `Sum` for collectives that do not reduce.
    pub op: ReduceOp,
    /// For `PreMulSum`, the bits of the scalar that multiplies this PE's elements; 0 for other
    /// reductions.
    pub scalar: u64,
    /// The rank of the root; rank 0 if the collective has no root.
    pub root: Rank,
    /// The number of elements, counted as in NCCL; 0 for barrier and sync. The counted elements
    /// are:
    /// - all-reduce (also with RMSNorm), reduce, broadcast and scans: the whole buffer;
    /// - all-gather and gather: the part that one rank sends;
    /// - reduce-scatter and scatter: the part that one rank receives;
    /// - all-to-all and its strided form: the part that one rank sends to one rank;
    /// - all-gather-v: all parts together;
    /// - all-to-all-v, gather-v and scatter-v: 0, because some ranks do not know all counts. See
    ///   [`VectorCounts`].
    pub count: usize,
    /// The memory that this PE sends or contributes. `None` if this PE passes no operand, as in a
    /// barrier, or in a scatter on ranks other than the root.
    pub send: Option<Place>,
    /// The memory that receives this PE's result. `None` if this PE gets no result, as in a reduce
    /// on ranks other than the root.
    pub recv: Option<Place>,
    /// The lengths and offsets of the parts. `None` if the kind has no such lists: see
    /// [`CollectiveKind::has_counts`].
    pub counts: Option<Arc<VectorCounts>>,
    /// Parameters that only a few collectives have. A pointer to these parameters keeps
    /// `Collective` small.
    pub special: Option<Arc<Special>>,
}

/// Parameters that only a few collectives have.
#[derive(Debug)]
pub enum Special {
    /// The caller's function, which combines elements in rank order and replaces
    /// [`Collective::op`]. A backend gets a function only if the backend sets
    /// [`Caps::reduce_functions`](crate::backend::Caps::reduce_functions).
    Function(Box<dyn Combine>),
    /// The strides of a strided all-to-all. The operation moves the same elements as an all-to-all,
    /// in the same order, but the elements are strided in the buffers.
    Strides {
        /// The distance between consecutive elements, in elements: first the distance in `send`,
        /// then the distance in `recv`.
        distances: [usize; 2],
        /// The size of an element, in bytes. An element may consist of several values of
        /// [`Collective::dtype`].
        element_bytes: usize,
    },
    /// The parameters of an all-reduce with RMSNorm.
    RmsNorm(RmsNorm),
}

impl Special {
    /// Returns the size of an element, in bytes. [`Collective::count`] is a number of these
    /// elements.
    pub fn element_bytes(&self) -> usize {
        match self {
            Self::Function(function) => function.element_bytes(),
            Self::Strides { element_bytes, .. } => *element_bytes,
            Self::RmsNorm(norm) => norm.element_bytes,
        }
    }
}

/// A function that the caller of a reduction passes. The function combines pairs of elements, which
/// are passed as bytes.
pub trait Combine: Send + Sync + fmt::Debug {
    /// Returns the size of an element, in bytes. An element may consist of several values of
    /// [`Collective::dtype`].
    fn element_bytes(&self) -> usize;

    /// Replaces each element `a` in `accumulator` by the combination of `a` and `b`, in this order.
    /// `b` is the element at the same index in `operand`. The two slices contain the same number of
    /// whole elements.
    fn combine(&self, accumulator: &mut [u8], operand: &[u8]);
}

impl Collective {
    /// Returns the function that the caller passed to combine elements; `None` if the reduction is
    /// a [`ReduceOp`].
    #[inline]
    pub fn function(&self) -> Option<&dyn Combine> {
        match self.special.as_deref()? {
            Special::Function(function) => Some(&**function),
            Special::Strides { .. } | Special::RmsNorm(_) => None,
        }
    }

    /// Returns the parameters of RMSNorm; `None` if the collective is not an all-reduce with
    /// RMSNorm.
    #[inline]
    pub fn rms_norm(&self) -> Option<&RmsNorm> {
        if let Special::RmsNorm(norm) = self.special.as_deref()? { Some(norm) } else { None }
    }

    /// Returns the size of an element, in bytes. [`count`](Self::count) is a number of these
    /// elements.
    #[inline]
    pub fn element_bytes(&self) -> usize {
        self.special.as_deref().map_or(self.dtype.size_bytes(), Special::element_bytes)
    }

    /// Returns the distances between consecutive elements in `send` and in `recv`, in elements. For
    /// collectives other than a strided all-to-all, both distances are 1.
    pub fn strides(&self) -> [usize; 2] {
        match self.special.as_deref() {
            Some(Special::Strides { distances, .. }) => *distances,
            _ => [1; 2],
        }
    }

    /// Returns the arguments that must be the same on all ranks of the team.
    pub fn shape(&self) -> CollectiveShape {
        let Self { kind, dtype, op, root, count, .. } = *self;
        CollectiveShape { kind, dtype, op, root, count, detail: self.rms_norm().map_or(0, RmsNorm::detail) }
    }
}

/// The arguments that must be the same on all ranks of a collective. `Display` formats the call for
/// error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields have the same meaning as in `Collective`")]
pub struct CollectiveShape {
    pub kind: CollectiveKind,
    pub dtype: DType,
    pub op: ReduceOp,
    pub root: Rank,
    pub count: usize,
    /// The parameters of RMSNorm, which [`RmsNorm::detail`] has encoded as one integer; 0 for
    /// collectives without RMSNorm.
    pub detail: u64,
}

impl fmt::Display for CollectiveShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, dtype, op, root, count, detail } = self;
        f.write_str(kind.name())?;
        if matches!(kind, CollectiveKind::Barrier | CollectiveKind::Sync) {
            return Ok(());
        }
        if !kind.has_counts() || *kind == CollectiveKind::AllGatherV {
            write!(f, " of {count} elements")?;
        }
        write!(f, " of {}", dtype.rust_name())?;
        if kind.reduces() {
            write!(f, " by {op}")?;
        }
        if kind.has_root() {
            write!(f, " with root {}", root.get())?;
        }
        if *kind == CollectiveKind::AllReduceRmsNorm {
            RmsNorm::describe(*detail, f)?;
        }
        Ok(())
    }
}

/// The parts that a rank sends and receives in an all-to-all-v: their lengths (counts) and offsets,
/// in elements. Each list has one entry per rank of the team.
///
/// Backends also get counts for all-gather-v, gather-v and scatter-v. These are the counts of an
/// all-to-all-v that moves the same parts. In an all-gather-v, a rank sends the same part to every
/// rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the fields need no explanation")]
pub struct VectorCounts {
    pub send_counts: Vec<usize>,
    pub send_offsets: Vec<usize>,
    pub recv_counts: Vec<usize>,
    pub recv_offsets: Vec<usize>,
}
