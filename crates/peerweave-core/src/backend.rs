//! The contract between the portable API and what moves the data.
//!
//! Design choices, so that nobody has to guess them:
//! - **Erased.** Operations arrive as plain data ([`Op`]): element types, places and counts, no generics. One indirect call is paid
//!   per operation, never per element.
//! - **Nothing is checked here.** Lengths, ranks, roots, membership, liveness and aliasing are checked once, in `check.rs`. A backend
//!   that finds one of them violated panics with "peerweave-core bug": a check that returned an error would tell readers that callers may
//!   rely on it.
//! - **Errors are for what the caller cannot foresee**: a peer that died, a deadline, PEs that disagree, memory that ran out.
//! - **Capabilities are data** ([`Caps`]), read before an operation, not discovered by its failure.
//! - **Every wait has a deadline**: the one of the world, or the one that is passed.
//!
//! # Collective operations and their counts
//! `count` is in elements and means, as in NCCL: the whole buffer for all-reduce, reduce and broadcast; what one rank contributes for
//! all-gather and gather; what one rank receives for reduce-scatter and scatter; what one rank sends to one rank for all-to-all.

use crate::Error;
use peerweave_device::launch::PtxImage;
use peerweave_types::{Compare, DType, Dim3, HeapGeometry, KernelContext, Pe, Rank, ReduceOp, SignalOp, SymOffset};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What moves the data: shared memory, GPUs, or nothing but a record of the calls.
///
/// # Safety
/// An implementation promises:
/// **\[B1\]** a memory range of an [`Op`] is accessed only inside its bounds, and only from `submit`/`run` until the operation has
/// completed or failed; after a failure no thread or process touches private memory of the caller any more;
/// **\[B2\]** the memory that [`Backend::local`] points into stays mapped until the backend is dropped;
/// **\[B3\]** a completed wait (signal, barrier, ticket) makes every put that was ordered before it visible;
/// **\[B4\]** symmetric memory, and private memory that an [`Op`] names, is accessed only in ways that stay defined when others access the
/// same bytes at the same time: private memory may be a buffer that another thread reads or another stream writes, or a plain slice;
/// **\[B5\]** a call after [`Backend::finalize`], or one that races with it or with [`Backend::release`], gives an error or an unspecified
/// value, and nothing worse.
pub unsafe trait Backend: Any + Send + Sync + fmt::Debug {
    /// A short name: `host`, `cuda`, `noop`.
    fn name(&self) -> &'static str;

    /// What this backend does, and how.
    fn caps(&self) -> &Caps;

    /// Who takes part.
    fn job(&self) -> &JobShape;

    /// How the symmetric heap is mapped in this process.
    fn geometry(&self) -> HeapGeometry;

    /// The deadline of every wait that is given none.
    fn deadline(&self) -> Duration;

    /// Allocates symmetric memory. Collective over all PEs: all must ask for the same, and disagreement is an error on each.
    fn allocate(&self, request: &Allocation) -> Result<SymOffset, Error>;

    /// Gives symmetric memory back, unless the calls mismatch. Collective over all PEs. Waits for this PE's operations that are still under way on any stream.
    fn release(&self, at: SymOffset) -> Result<(), Error>;

    /// Where this PE's copy of a symmetric place is mapped, for [`Backend::read_local`] and [`Backend::write_local`] and for users that
    /// hand the address on.
    fn local(&self, at: SymOffset) -> *mut u8;

    /// Copies out of this PE's symmetric memory; defined even while a peer writes there.
    ///
    /// # Safety
    /// `at .. at + bytes` lies in one live allocation; `into` is valid for writes of `bytes` and is not symmetric memory.
    unsafe fn read_local(&self, at: SymOffset, into: *mut u8, bytes: usize);

    /// Copies into this PE's symmetric memory; defined even while a peer reads or writes there.
    ///
    /// # Safety
    /// `at .. at + bytes` lies in one live allocation; `from` is valid for reads of `bytes` and is not symmetric memory.
    unsafe fn write_local(&self, at: SymOffset, from: *const u8, bytes: usize);

    /// Splits a team. Collective over the parent: ranks that give the same color form a team, ordered by key, then by parent rank; a rank
    /// that gives none gets none.
    fn team_split(&self, parent: TeamId, part: Option<SplitPart>) -> Result<Option<TeamRecord>, Error>;

    /// Ends a team. Collective over it, after the operations that were issued before. Never called for the world. After a mismatch the team is
    /// as it was.
    fn team_destroy(&self, team: TeamId) -> Result<(), Error>;

    /// A new ordered queue.
    fn stream(&self) -> Result<Arc<dyn StreamBackend>, Error>;

    /// Runs an operation on the calling thread and returns when it is complete.
    ///
    /// # Safety
    /// The memory that `op` names is valid for what it does until this returns.
    unsafe fn run(&self, op: &Op) -> Result<Outcome, Error>;

    /// The end of this PE's part in the job. Collective over all PEs, waits for what is under way. No call follows it.
    fn finalize(&self) -> Result<(), Error>;

    /// What is under way or waited for, in words, for `info` and error reports.
    fn describe(&self) -> String;
}

/// An ordered queue of operations: each starts when the one before it has completed.
///
/// # Safety
/// As [`Backend`]; and **\[B6\]** `keep` is called, and what it returned held until the operation has completed or failed, whenever
/// `submit` returns [`Submitted::Queued`].
pub unsafe trait StreamBackend: Any + Send + Sync + fmt::Debug {
    /// Enqueues an operation. It may run on the calling thread where the queue is idle, for as long as a caller of an asynchronous
    /// call can be expected to wait (about a millisecond).
    ///
    /// # Safety
    /// The memory that `op` names is valid for what it does while what `keep` returned lives, or until this returns where it does not
    /// return [`Submitted::Queued`].
    unsafe fn submit(&self, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Submitted, Error>;

    /// Waits until all that was enqueued is complete. The first failure since the last call is returned, once.
    fn synchronize(&self, within: Duration) -> Result<(), Error>;

    /// Whether all that was enqueued is complete.
    fn is_idle(&self) -> bool;

    /// A mark behind all that was enqueued so far.
    fn record(&self) -> Result<Arc<dyn EventBackend>, Error>;

    /// Makes what is enqueued from now on wait for a mark of another queue of the same backend.
    fn wait_event(&self, event: &Arc<dyn EventBackend>) -> Result<(), Error>;
}

/// A mark in a queue.
pub trait EventBackend: Any + Send + Sync + fmt::Debug {
    /// Whether the queue has passed the mark.
    fn is_complete(&self) -> bool;
    /// Waits until it has. Fails where an operation before the mark failed.
    fn wait(&self, within: Duration) -> Result<(), Error>;
    /// When the queue passed it, by a clock that all marks of the backend share; `None` where it has not.
    fn passed_at(&self) -> Option<Duration>;
}

/// An operation that was enqueued and has not been seen to complete.
pub trait Pending: Send + Sync + fmt::Debug {
    /// Whether it has completed or failed.
    fn is_complete(&self) -> bool;
    /// Waits until it has.
    fn wait(&self, within: Duration) -> Result<Outcome, Error>;
}

/// What keeps memory alive while an operation uses it. Dropping it is local and never blocks; it may drop the last handle of the world, and
/// with it the backend, on whatever thread that happens.
pub type Keep = Box<dyn Any + Send + Sync>;

/// What became of an operation that was handed to a queue.
#[derive(Debug)]
pub enum Submitted {
    /// It has completed already.
    Complete(Outcome),
    /// It waits or runs; the queue holds what it uses.
    Queued(Arc<dyn Pending>),
}

/// What a completed operation yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing but its effect.
    Done,
    /// The bits of one element or word.
    Word(u64),
    /// Indices, ascending: of the words that satisfied a wait.
    Indices(Vec<usize>),
    /// A test that found nothing.
    NotYet,
}

/// Who takes part in the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobShape {
    /// This PE.
    pub my_pe: Pe,
    /// Number of PEs.
    pub n_pes: usize,
    /// The PEs of this machine, ascending; `my_pe` is among them.
    pub local: Vec<Pe>,
}

/// What a backend does, and how: data, read before an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caps {
    /// Bytes of symmetric heap of each PE.
    pub heap_bytes: usize,
    /// How ordinary (private) buffers take part in operations between PEs.
    pub private_buffers: PrivateBuffers,
    /// Whether PEs compare their calls before running them.
    pub call_checking: CallChecking,
    /// Largest number of teams that one PE can belong to at a time, the world included.
    pub max_teams: usize,
    /// Largest alignment of an allocation, in bytes: a power of two.
    pub max_align_bytes: usize,
    /// The instruction set or device that computes, in words.
    pub compute: String,
}

impl Caps {
    /// Starts from what every backend has: ordinary buffers by staging, no call checking, allocations aligned to at most a page.
    pub fn new(heap_bytes: usize, max_teams: usize, compute: impl Into<String>) -> Self {
        Self {
            heap_bytes,
            private_buffers: PrivateBuffers::Staged,
            call_checking: CallChecking::Never,
            max_teams,
            max_align_bytes: 4096,
            compute: compute.into(),
        }
    }
}

/// How ordinary buffers take part in operations between PEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrivateBuffers {
    /// Through memory that both sides see: one copy more.
    Staged,
    /// Read from the other process's memory by the kernel.
    CrossMemoryAttach,
    /// They do not: operations on them are refused.
    Refused,
}

/// Whether PEs compare operation, count, type, root and reduction before they run a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallChecking {
    /// Always: it costs nothing here.
    Always,
    /// When `PEERWEAVE_CHECK_CALLS=1`; and it is on.
    On,
    /// When `PEERWEAVE_CHECK_CALLS=1`; and it is off.
    Off,
    /// It is not offered.
    Never,
}

/// The number of a team inside its backend. The world is [`TeamId::WORLD`]; a number is not used again soon after its team was destroyed, so that
/// a late call finds no stranger's team under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TeamId(pub u32);

impl TeamId {
    /// All PEs, in their order.
    pub const WORLD: Self = Self(0);
}

/// A team as its backend made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TeamRecord {
    /// Its number.
    pub id: TeamId,
    /// Its members in rank order; `my_pe` is among them.
    pub members: Vec<Pe>,
}

/// One rank's part in a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitPart {
    /// Ranks of the same color form a team.
    pub color: u64,
    /// Orders the ranks of a team.
    pub key: i64,
}

/// A request for symmetric memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// How many bytes; 0 gives a place that no operation touches.
    pub bytes: usize,
    /// A power of two; 64 at least is given.
    pub align: usize,
    /// Whether this PE's copy is filled with zeros before any PE's call returns.
    pub zeroed: bool,
}

/// Where an operation finds its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this PE's symmetric segment.
    Symmetric(SymOffset),
    /// Ordinary memory of this process.
    Private(*mut u8),
}

impl Place {
    /// The place `bytes` further on.
    #[must_use]
    pub fn plus(self, bytes: usize) -> Self {
        match self {
            Self::Symmetric(at) => Self::Symmetric(at.plus(bytes as u64)),
            Self::Private(at) => Self::Private(at.wrapping_add(bytes)),
        }
    }
}

// SAFETY: a place is a number to whoever holds it; the memory is accessed only under the contract of `submit` and `run`, whose callers answer
// for it being valid from any thread (buffers in flight are held by `Keep`, which is Send + Sync). Shared: nothing mutable. Would be caught by:
// tests/streams.rs, which drops buffers while a worker thread still uses them (under ThreadSanitizer).
unsafe impl Send for Place {}
// SAFETY: as for Send: a shared place gives nobody access by itself.
unsafe impl Sync for Place {}

/// One operation, erased. Plain data: cloning it clones no memory.
#[derive(Clone, Debug)]
pub enum Op {
    /// An operation of a whole team.
    Collective(Collective),
    /// Sends and receives of one rank, all under way at once.
    PointToPoint(PointToPoint),
    /// Several operations that were grouped: sends and receives among them are under way at once, the rest in order.
    Group(Arc<[Op]>),
    /// A put, of bytes that lie together.
    Put(Put),
    /// A get, of bytes that lie together.
    Get(Get),
    /// A put or get of single elements at strides.
    Strided(Strided),
    /// Changes a signal word.
    Signal(Signal),
    /// Waits for signal words of this PE.
    Wait(WaitUntil),
    /// An atomic operation on one element.
    Atomic(Atomic),
    /// Runs a kernel on a grid of threads.
    Launch(Launch),
    /// Orders this PE's puts and signals: those before it are visible to a target before those after it.
    Fence,
    /// Completes this PE's puts, gets and signals at their targets.
    Quiet,
}

/// The collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are the field's; the counts are told in the module head")]
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
}

impl CollectiveKind {
    /// Every collective.
    pub const ALL: [Self; 11] = [
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
    ];

    /// The name of the call.
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
        }
    }

    /// The collective with this number, as `self as u8` gives it.
    pub const fn from_u8(number: u8) -> Option<Self> {
        if (number as usize) < Self::ALL.len() { Some(Self::ALL[number as usize]) } else { None }
    }

    /// Whether elements are combined.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Whether one rank is the root.
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter)
    }
}

/// A collective operation of this PE. Fields that a kind does not use hold zeros or `None`.
///
/// In place means that `send` and `recv` name the same bytes: the same buffer (all-reduce, reduce, broadcast, all-to-all, all-to-all-v), or
/// this rank's part of the larger one (all-gather: `send` is part `rank` of `recv`; reduce-scatter: `recv` is part `rank` of `send`; gather and
/// scatter: likewise at the root). Otherwise they do not overlap.
#[derive(Clone, Debug)]
pub struct Collective {
    /// Which.
    pub kind: CollectiveKind,
    /// Of which team.
    pub team: TeamId,
    /// Element type; `U8` for barrier and sync.
    pub dtype: DType,
    /// Reduction; `Sum` where nothing is reduced.
    pub op: ReduceOp,
    /// The bits of this PE's scalar, for `PreMulSum`.
    pub scalar: u64,
    /// The root; rank 0 where there is none.
    pub root: Rank,
    /// Elements, as the module head says; 0 for barrier, sync and all-to-all-v.
    pub count: usize,
    /// What this PE gives; `None` where it gives nothing (barrier, a scatter elsewhere than at the root, …).
    pub send: Option<Place>,
    /// Where this PE's result goes; `None` where it gets none (a reduce elsewhere than at the root, …).
    pub recv: Option<Place>,
    /// The counts of all-to-all-v.
    pub counts: Option<Arc<VectorCounts>>,
}

/// Who sends how much to whom in an all-to-all-v, in elements; each list has one entry per rank of the team.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it, the head says the units")]
pub struct VectorCounts {
    pub send_counts: Vec<usize>,
    pub send_offsets: Vec<usize>,
    pub recv_counts: Vec<usize>,
    pub recv_offsets: Vec<usize>,
}

/// One send or receive. Those between two ranks of a team match in the order of their calls.
#[derive(Clone, Debug)]
pub struct PointToPoint {
    /// Whether this PE sends or receives.
    pub direction: Direction,
    /// The team in which `peer` is a rank.
    pub team: TeamId,
    /// The other side; may be this rank itself, inside a group.
    pub peer: Rank,
    /// Element type.
    pub dtype: DType,
    /// Elements.
    pub count: usize,
    /// From where, or to where.
    pub at: Place,
}

/// The side of a [`PointToPoint`].
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
    /// Where in its segment.
    pub target: SymOffset,
    /// From where.
    pub source: Place,
    /// How many bytes.
    pub bytes: usize,
    /// Element size, in bytes.
    pub element_bytes: usize,
    /// Changed at the target after the data is visible there.
    pub signal: Option<(SymOffset, u64, SignalOp)>,
    /// Whether completion may wait for the next quiet.
    pub nbi: bool,
}

/// A get: `bytes` from `source` of `pe` to `target` of this PE.
#[derive(Clone, Copy, Debug)]
pub struct Get {
    /// The PE that is read.
    pub pe: Pe,
    /// Where in its segment.
    pub source: SymOffset,
    /// To where.
    pub target: Place,
    /// How many bytes.
    pub bytes: usize,
    /// Element size, in bytes.
    pub element_bytes: usize,
    /// Whether completion may wait for the next quiet.
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

/// A kernel with its arguments, and the shape of its grid. The shape is one that GPUs run; the arguments name live memory.
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
    /// Whether the blocks may wait for each other: all are under way at the same time, or the launch fails.
    pub cooperative: bool,
}

/// A kernel and its arguments, erased.
pub trait BoundKernel: Send + Sync + fmt::Debug {
    /// The name of the entry in the PTX.
    fn name(&self) -> &'static str;

    /// The PTX of the kernel's crate.
    fn ptx(&self) -> &'static PtxImage;

    /// Runs one thread of the kernel on the thread that calls.
    ///
    /// # Safety
    /// The context is alive until the call returns, its addresses are those of this process, and the memory that the arguments name
    /// is allocated.
    unsafe fn run_thread(&self, context: *const KernelContext);

    /// Calls `with` for each argument in order: its address, its size and its alignment in bytes.
    fn arguments(&self, with: &mut dyn FnMut(*const u8, usize, usize));
}

/// A change of one signal word.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Signal {
    pub pe: Pe,
    pub at: SymOffset,
    pub value: u64,
    pub op: SignalOp,
}

/// A wait for signal words of this PE, which lie together.
#[derive(Clone, Debug)]
pub struct WaitUntil {
    /// The first word.
    pub at: SymOffset,
    /// How many words.
    pub count: usize,
    /// Words that are not looked at; `None`: all are. One entry per word.
    pub exclude: Option<Arc<[bool]>>,
    /// How a word is compared.
    pub compare: Compare,
    /// With what.
    pub value: u64,
    /// When the wait is over.
    pub until: Until,
    /// Whether it waits at all, or looks once.
    pub mode: WaitMode,
}

/// When a wait for several words is over. Words that are excluded count for nothing; where all are, it is over at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// All satisfy. Yields the last word's value (of the single word of `wait_until`).
    All,
    /// One satisfies. Yields the lowest such index, as the only one of [`Outcome::Indices`].
    Any,
    /// At least one satisfies. Yields all such indices.
    Some,
}

/// Whether a wait waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// Until it is over, or the deadline.
    Wait,
    /// Looks once, and yields [`Outcome::NotYet`] where it is not over.
    Test,
}

/// An atomic operation on one element of a PE's symmetric memory.
#[derive(Clone, Copy, Debug)]
pub struct Atomic {
    /// The PE whose element it is.
    pub pe: Pe,
    /// Where; aligned to the element.
    pub at: SymOffset,
    /// Element type: I32, U32, I64, U64; F32 and F64 for fetch, set and swap.
    pub dtype: DType,
    /// Which.
    pub kind: AtomicKind,
    /// The bits of the operand; 0 where there is none.
    pub operand: u64,
    /// The bits that compare-swap expects.
    pub compare: u64,
}

/// The atomic operations. Those that fetch yield the old value.
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
