//! Operations as plain data, and the location of their memory.
//!
//! # Collective operations and their counts
//! `count` is in elements, with the meaning of NCCL: the whole buffer for all-reduce, also with a
//! norm, reduce, broadcast and scans; the contribution of one rank for all-gather and gather; the
//! result of one rank for reduce-scatter and scatter; the part from one rank to one rank for
//! all-to-all and its strided form; the sum of all parts for all-gather-v. It is 0 for
//! all-to-all-v, gather-v and scatter-v, whose counts not every rank knows: see [`VectorCounts`].

use super::{RmsNorm, TeamId};
use peerweave_device::launch::PtxImage;
use peerweave_types::{ArgVisitor, Compare, DType, Dim3, KernelContext, Pe, Rank, ReduceOp, SignalOp, SymOffset};
use std::fmt;
use std::sync::Arc;

/// The location of memory of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the symmetric segment of this PE.
    Symmetric(SymOffset),
    /// Ordinary memory of this process.
    Private(*mut u8),
    /// Memory of a device that is not in the symmetric segment. Only for a backend whose
    /// [`Caps::device`](super::Caps::device) is this device.
    Device {
        /// The address for work of the device.
        address: u64,
        /// The number of the device in this process.
        ordinal: u32,
    },
}

impl Place {
    /// Returns the place `bytes` bytes after this one.
    #[must_use]
    pub fn plus(self, bytes: usize) -> Self {
        match self {
            Self::Symmetric(at) => Self::Symmetric(at.plus(bytes as u64)),
            Self::Private(at) => Self::Private(at.wrapping_add(bytes)),
            Self::Device { address, ordinal } => Self::Device { address: address + bytes as u64, ordinal },
        }
    }
}

// SAFETY: a place is only a number; the memory is accessed under the contract of `submit` and
// `run`, whose callers guarantee that it is valid from any thread (buffers in flight are held by
// `Keep`, which is Send + Sync). Shared: nothing mutable. Would be caught by: tests/streams.rs,
// which drops buffers while a worker thread still uses them (under ThreadSanitizer).
unsafe impl Send for Place {}
// SAFETY: as for Send: a shared place gives no access by itself.
unsafe impl Sync for Place {}

/// One operation, without generics. It is plain data: cloning it clones no memory.
// A tag of its own is read by one instruction; one inside of a field takes five.
#[repr(u8)]
#[derive(Clone, Debug)]
pub enum Op {
    /// An operation of a whole team.
    Collective(Collective),
    /// A send or receive of one rank.
    PointToPoint(PointToPoint),
    /// Grouped operations. Sends and receives among them run at the same time, the others in order.
    Group(Arc<Vec<Op>>),
    /// A put of contiguous bytes.
    Put(Put),
    /// A get of contiguous bytes.
    Get(Get),
    /// A put or get of elements at strides.
    Strided(Strided),
    /// A put of one element, whose value is in the operation.
    PutElement(PutElement),
    /// A get of one element. The outcome is its bits.
    GetElement(GetElement),
    /// A copy between two places of this PE.
    Copy(Copy),
    /// Sets elements of this PE to one value.
    Fill(Fill),
    /// Changes a signal word.
    Signal(Signal),
    /// Waits for signal words of this PE.
    Wait(WaitUntil),
    /// An atomic operation on one element.
    Atomic(Atomic),
    /// Runs a kernel on a grid of threads.
    Launch(Launch),
    /// Orders the puts and signals of this PE: a target sees the ones before the fence before the
    /// ones after it.
    Fence,
    /// Completes the puts, gets and signals of this PE at their targets.
    Quiet,
}

impl Op {
    /// Returns whether the operation owns memory of this process that a drop must free. False for
    /// all that take only nanoseconds.
    #[inline(always)]
    pub(crate) fn owns_memory(&self) -> bool {
        match self {
            Self::Collective(op) => op.counts.is_some() || op.special.is_some(),
            Self::Group(_) | Self::Wait(_) | Self::Launch(_) => true,
            Self::PointToPoint(_)
            | Self::Put(_)
            | Self::Get(_)
            | Self::Strided(_)
            | Self::PutElement(_)
            | Self::GetElement(_)
            | Self::Copy(_)
            | Self::Fill(_)
            | Self::Signal(_)
            | Self::Atomic(_)
            | Self::Fence
            | Self::Quiet => false,
        }
    }

    /// Returns the name of the call that makes this operation.
    #[inline]
    pub fn call_name(&self) -> &'static str {
        match self {
            Self::Collective(op) => op.kind.name(),
            Self::PointToPoint(op) => match op.direction {
                Direction::Send => "send",
                Direction::Receive => "recv",
            },
            Self::Group(_) => "group",
            Self::Put(put) if put.signal.is_some() => "put_signal",
            Self::Put(_) => "put",
            Self::Get(_) => "get",
            Self::Strided(op) => match op.direction {
                Direction::Send => "put_strided",
                Direction::Receive => "get_strided",
            },
            Self::PutElement(_) => "p",
            Self::GetElement(_) => "g",
            Self::Copy(_) => "copy",
            Self::Fill(_) => "fill",
            Self::Signal(_) => "signal",
            Self::Wait(wait) => wait.call_name(),
            Self::Atomic(_) => "atomic",
            Self::Launch(launch) => launch.kernel.name(),
            Self::Fence => "fence",
            Self::Quiet => "quiet",
        }
    }
}

/// The collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are common; the module head explains the counts")]
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
    /// Every collective.
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

    /// Returns the name of the call.
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

    /// Returns the collective whose `as u8` value is `number`.
    pub const fn from_u8(number: u8) -> Option<Self> {
        if (number as usize) < Self::ALL.len() { Some(Self::ALL[number as usize]) } else { None }
    }

    /// Returns whether the collective reduces elements by the reduction of the caller.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter | Self::Scan | Self::ExclusiveScan)
    }

    /// Returns whether rank `r` gets the reduction of the first ranks only: up to `r`, or up to
    /// `r - 1`. An exclusive scan changes nothing on rank 0.
    pub const fn is_scan(self) -> bool {
        matches!(self, Self::Scan | Self::ExclusiveScan)
    }

    /// Returns whether the collective has a root.
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter | Self::GatherV | Self::ScatterV)
    }

    /// Returns whether parts have different lengths, which [`Collective::counts`] holds.
    pub const fn has_counts(self) -> bool {
        matches!(self, Self::AllToAllV | Self::AllGatherV | Self::GatherV | Self::ScatterV)
    }
}

/// A collective operation of this PE. Fields that a kind does not use hold zeros or `None`.
///
/// In place means that `send` and `recv` name the same bytes: the same buffer (all-reduce, reduce,
/// broadcast, all-to-all, all-to-all-v), or this rank's part of the larger one (all-gather: `send`
/// is part `rank` of `recv`; reduce-scatter: `recv` is part `rank` of `send`; gather and scatter:
/// likewise at the root; all-gather-v, gather-v and scatter-v: `counts` gives the part). Otherwise
/// they do not overlap.
#[derive(Clone, Debug)]
pub struct Collective {
    /// The kind of collective.
    pub kind: CollectiveKind,
    /// The team.
    pub team: TeamId,
    /// Element type; `U8` for barrier and sync.
    pub dtype: DType,
    /// The reduction; `Sum` for collectives that do not reduce.
    pub op: ReduceOp,
    /// The bits of the scalar of this PE, for `PreMulSum`.
    pub scalar: u64,
    /// The root; rank 0 if there is none.
    pub root: Rank,
    /// The number of elements, explained in the module head; 0 for barrier and sync.
    pub count: usize,
    /// The operand of this PE; `None` if it has none (a barrier, a scatter on ranks other than the
    /// root, …).
    pub send: Option<Place>,
    /// The result of this PE; `None` if it gets none (a reduce on ranks other than the root, …).
    pub recv: Option<Place>,
    /// The counts of the kinds that [have some](CollectiveKind::has_counts).
    pub counts: Option<Arc<VectorCounts>>,
    /// What few calls have. It is behind a pointer, so that others stay short.
    pub special: Option<Arc<Special>>,
}

/// What only few collectives have.
#[derive(Debug)]
pub enum Special {
    /// A function of the caller that combines elements in place of [`Collective::op`], in rank
    /// order. Only for a backend whose [`Caps::reduce_functions`](super::Caps::reduce_functions) is
    /// set.
    Function(Box<dyn Combine>),
    /// For a strided all-to-all: the elements are those of an all-to-all, in the same order.
    Strides {
        /// The distances between elements of `send` and of `recv`.
        distances: [usize; 2],
        /// The size of an element in bytes, which may consist of several values of the type.
        element_bytes: usize,
    },
    /// For an all-reduce with a norm.
    RmsNorm(RmsNorm),
}

impl Special {
    /// Returns the size of an element in bytes. [`Collective::count`] is in these elements.
    pub fn element_bytes(&self) -> usize {
        match self {
            Self::Function(function) => function.element_bytes(),
            Self::Strides { element_bytes, .. } => *element_bytes,
            Self::RmsNorm(norm) => norm.element_bytes,
        }
    }
}

/// Combines elements in a way that the caller defines. The elements are passed as bytes.
pub trait Combine: Send + Sync + fmt::Debug {
    /// Returns the size of an element in bytes, which may consist of several values of the type.
    fn element_bytes(&self) -> usize;

    /// Replaces each element `a` of `accumulator` by the combination of `a` and the element `b` at
    /// the same index of `operand`, in this order. Both slices hold whole elements, and as many.
    fn combine(&self, accumulator: &mut [u8], operand: &[u8]);
}

impl Collective {
    /// Returns the function of the caller that combines elements.
    #[inline]
    pub fn function(&self) -> Option<&dyn Combine> {
        match self.special.as_deref()? {
            Special::Function(function) => Some(&**function),
            Special::Strides { .. } | Special::RmsNorm(_) => None,
        }
    }

    /// Returns the parameters of the norm.
    #[inline]
    pub fn rms_norm(&self) -> Option<&RmsNorm> {
        if let Special::RmsNorm(norm) = self.special.as_deref()? { Some(norm) } else { None }
    }

    /// Returns the size of what [`count`](Self::count) counts, in bytes.
    #[inline]
    pub fn element_bytes(&self) -> usize {
        self.special.as_deref().map_or(self.dtype.size_bytes(), Special::element_bytes)
    }

    /// Returns the distances between elements of `send` and of `recv`.
    pub fn strides(&self) -> [usize; 2] {
        match self.special.as_deref() {
            Some(Special::Strides { distances, .. }) => *distances,
            _ => [1; 2],
        }
    }

    /// Returns the arguments that must be equal on all ranks of the team.
    pub fn shape(&self) -> CollectiveShape {
        let Self { kind, dtype, op, root, count, .. } = *self;
        CollectiveShape { kind, dtype, op, root, count, detail: self.rms_norm().map_or(0, RmsNorm::detail) }
    }
}

/// The arguments of a collective that must be equal on all ranks. `Display` formats the call for a
/// message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of a collective")]
pub struct CollectiveShape {
    pub kind: CollectiveKind,
    pub dtype: DType,
    pub op: ReduceOp,
    pub root: Rank,
    pub count: usize,
    /// The parameters that few collectives have, as one word: [`RmsNorm::detail`].
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

/// The counts and offsets of an all-to-all-v, in elements. Each list has one entry per rank of the
/// team.
///
/// A backend gets them for all-gather-v, gather-v and scatter-v too: as an all-to-all-v would need
/// them. In an all-gather-v, the part that a rank sends is the same for every rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names describe the fields, the module head their units")]
pub struct VectorCounts {
    pub send_counts: Vec<usize>,
    pub send_offsets: Vec<usize>,
    pub recv_counts: Vec<usize>,
    pub recv_offsets: Vec<usize>,
}

/// One send or receive. Sends and receives between two ranks of a team match in the order of their
/// calls.
#[derive(Clone, Debug)]
pub struct PointToPoint {
    /// Whether this PE sends or receives.
    pub direction: Direction,
    /// The team in which `peer` is a rank.
    pub team: TeamId,
    /// The other rank; inside a group it may be this rank itself.
    pub peer: Rank,
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub count: usize,
    /// The memory that is sent or received.
    pub at: Place,
}

/// Whether a [`PointToPoint`] sends or receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Direction {
    Send,
    Receive,
}

/// A put: `bytes` from `source` of this PE to `target` of `pe`, then its signal.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// The target PE.
    pub pe: Pe,
    /// The offset in its segment.
    pub target: SymOffset,
    /// The source.
    pub source: Place,
    /// The number of bytes.
    pub bytes: usize,
    /// Element size, in bytes.
    pub element_bytes: usize,
    /// A signal word that changes at the target after the data is visible there.
    pub signal: Option<(SymOffset, u64, SignalOp)>,
    /// Whether the operation may complete as late as the next quiet.
    pub nbi: bool,
}

/// A get: `bytes` from `source` of `pe` to `target` of this PE.
#[derive(Clone, Copy, Debug)]
pub struct Get {
    /// The PE that is read.
    pub pe: Pe,
    /// The offset in its segment.
    pub source: SymOffset,
    /// The target.
    pub target: Place,
    /// The number of bytes.
    pub bytes: usize,
    /// Element size, in bytes.
    pub element_bytes: usize,
    /// Whether the operation may complete as late as the next quiet.
    pub nbi: bool,
}

/// A put (`Send`) or get (`Receive`) of `count` elements at strides, counted in elements.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Strided {
    pub direction: Direction,
    pub pe: Pe,
    pub remote: SymOffset,
    pub remote_stride: usize,
    pub local: Place,
    pub local_stride: usize,
    pub element_bytes: usize,
    pub count: usize,
}

/// A put of one element: its value travels in the operation, so that no memory has to hold it.
#[derive(Clone, Copy, Debug)]
pub struct PutElement {
    /// The target PE.
    pub pe: Pe,
    /// The offset in its segment, aligned to the element.
    pub target: SymOffset,
    /// The bits: the element is the first `element_bytes` bytes of this word in memory.
    pub bits: u64,
    /// Element size, in bytes: 1, 2, 4 or 8.
    pub element_bytes: usize,
}

/// A get of one element. The outcome is an [`Outcome::Word`](super::Outcome::Word) whose first
/// bytes in memory are the element.
#[derive(Clone, Copy, Debug)]
pub struct GetElement {
    /// The PE that is read.
    pub pe: Pe,
    /// The offset in its segment, aligned to the element.
    pub source: SymOffset,
    /// Element size, in bytes: 1, 2, 4 or 8.
    pub element_bytes: usize,
}

/// A copy of `bytes` between two places of this PE, which do not overlap.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Copy {
    pub source: Place,
    pub target: Place,
    pub bytes: usize,
}

/// Sets `count` elements of this PE to one value.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// The first element.
    pub target: Place,
    /// The bits: the element is the first `element_bytes` bytes of this word in memory.
    pub bits: u64,
    /// Element size, in bytes: 1, 2, 4 or 8.
    pub element_bytes: usize,
    /// The number of elements.
    pub count: usize,
}

/// A kernel with its arguments and the shape of its grid. The core has checked that GPUs can run
/// the shape, and that the arguments name live memory.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel and its arguments.
    pub kernel: Arc<dyn BoundKernel>,
    /// Blocks of the grid.
    pub grid: Dim3,
    /// Threads of a block.
    pub block: Dim3,
    /// Bytes of dynamic shared memory of each block.
    pub shared_bytes: usize,
    /// Whether blocks may wait for each other: either all run at the same time, or the launch
    /// fails.
    pub cooperative: bool,
}

/// A kernel and its arguments, without their types.
pub trait BoundKernel: Send + Sync + fmt::Debug {
    /// Returns the name of the entry in the PTX.
    fn name(&self) -> &'static str;

    /// Returns the PTX of the kernel's crate.
    fn ptx(&self) -> &'static PtxImage;

    /// Runs one thread of the kernel on the calling thread.
    ///
    /// # Safety
    /// The context is alive until the call returns, its addresses are those of this process, and
    /// the memory that the arguments name is allocated.
    unsafe fn run_thread(&self, context: *const KernelContext);

    /// Calls `with` for each argument in order: its address, its size and its alignment in bytes.
    fn arguments(&self, with: &mut dyn FnMut(*const u8, usize, usize));

    /// Passes each view of memory and each team in the arguments to the visitor, in order. The
    /// numbers of these teams are those that [`KernelContext`] uses, from
    /// [`Backend::kernel_team`](super::Backend::kernel_team).
    fn visit(&self, visitor: &mut dyn ArgVisitor);
}

/// An update of one signal word.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Signal {
    pub pe: Pe,
    pub at: SymOffset,
    pub value: u64,
    pub op: SignalOp,
}

/// A wait for contiguous words of this PE.
#[derive(Clone, Debug)]
pub struct WaitUntil {
    /// The first word, aligned to its size.
    pub at: SymOffset,
    /// The number of words.
    pub count: usize,
    /// Element type of the words: an integer of 2, 4 or 8 bytes, signed or unsigned.
    pub dtype: DType,
    /// Words that are ignored, one entry per word; `None` if no word is.
    pub exclude: Option<Arc<[bool]>>,
    /// The comparison.
    pub compare: Compare,
    /// The values to compare with.
    pub values: WaitValues,
    /// The condition of the wait.
    pub until: Until,
    /// The index of the word that [`Until::Any`] looks at first, less than `count`; 0 if there are
    /// no words.
    pub start: usize,
    /// Whether the operation waits or tests once.
    pub mode: WaitMode,
}

/// The values with which a wait compares words: bits of the words' type, zero-extended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitValues {
    /// One value for all words.
    Same(u64),
    /// A value for each word.
    Each(Arc<[u64]>),
}

impl WaitUntil {
    /// Returns the value with which the word at `index` is compared.
    #[inline]
    pub fn value(&self, index: usize) -> u64 {
        match &self.values {
            WaitValues::Same(value) => *value,
            WaitValues::Each(values) => values[index],
        }
    }

    /// Returns whether the comparison of the word at `index`, whose zero-extended bits are `word`,
    /// holds.
    #[inline]
    pub fn holds(&self, index: usize, word: u64) -> bool {
        self.compare.holds_as(self.dtype, word, self.value(index))
    }

    /// Returns whether the word at `index` is ignored.
    #[inline]
    pub fn excludes(&self, index: usize) -> bool {
        self.exclude.as_ref().is_some_and(|exclude| exclude[index])
    }

    /// Returns the name of the call that waits; a test has the name of the wait for the same
    /// condition.
    pub fn call_name(&self) -> &'static str {
        match (self.until, &self.values) {
            (Until::All, WaitValues::Same(_)) if self.count == 1 => "wait_until",
            (Until::All, WaitValues::Same(_)) => "wait_until_all",
            (Until::Any, WaitValues::Same(_)) => "wait_until_any",
            (Until::Some, WaitValues::Same(_)) => "wait_until_some",
            (Until::All, WaitValues::Each(_)) => "wait_until_all_vector",
            (Until::Any, WaitValues::Each(_)) => "wait_until_any_vector",
            (Until::Some, WaitValues::Each(_)) => "wait_until_some_vector",
        }
    }
}

/// The condition of a wait for several words. Excluded words are ignored; if all are excluded, the
/// condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// All words satisfy the comparison. The outcome is the value of the last word.
    All,
    /// One word satisfies the comparison. The outcome is the first such index at or after
    /// [`WaitUntil::start`], or, if there is none, the first one before it, as the only one in
    /// [`Outcome::Indices`](super::Outcome::Indices).
    Any,
    /// At least one word satisfies the comparison. The outcome is the indices of all such words.
    Some,
}

/// Whether an operation waits or tests once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// Waits until the condition holds or the deadline passes.
    Wait,
    /// Tests once. The outcome is [`Outcome::NotYet`](super::Outcome::NotYet) if the condition does
    /// not hold.
    Test,
}

/// An atomic operation on one element of a PE's symmetric memory.
#[derive(Clone, Copy, Debug)]
pub struct Atomic {
    /// The PE that owns the element.
    pub pe: Pe,
    /// The offset, aligned to the element.
    pub at: SymOffset,
    /// Element type: I32, U32, I64, U64; F32 and F64 for fetch, set and swap.
    pub dtype: DType,
    /// The kind of operation.
    pub kind: AtomicKind,
    /// The bits of the operand; 0 if there is none.
    pub operand: u64,
    /// The bits that compare-swap expects.
    pub compare: u64,
}

/// The atomic operations. Those that fetch return the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are OpenSHMEM's")]
pub enum AtomicKind {
    Fetch,
    Set,
    Swap,
    CompareSwap,
    Add,
    FetchAdd,
    Inc,
    FetchInc,
    And,
    FetchAnd,
    Or,
    FetchOr,
    Xor,
    FetchXor,
}
