//! The contract between the portable API and what moves the data.
//!
//! Design choices, so that nobody has to guess them:
//! - **Erased.** Operations arrive as plain data ([`Op`]): element types, places and counts, no generics. One indirect call is paid
//!   per operation, never per element.
//! - **Nothing is checked here.** Lengths, ranks, roots, membership, liveness and aliasing are checked once, in `check/`. A backend
//!   that finds one of them violated panics with "peerweave-core bug": a check that returned an error would tell readers that callers may
//!   rely on it.
//! - **Errors are for what the caller cannot foresee**: a peer that died, a deadline, PEs that disagree, memory that ran out.
//! - **Capabilities are data** ([`Caps`]), read before an operation, not discovered by its failure.
//! - **Every wait has a deadline**: the one of the world, or the one that is passed.

mod caps;
mod op;

pub use caps::{CallChecking, Caps, PrivateBuffers};
pub use op::{
    Atomic, AtomicKind, BoundKernel, Collective, CollectiveKind, Direction, Get, Launch, Op, Place, PointToPoint, Put, Signal,
    Strided, Until, VectorCounts, WaitMode, WaitUntil,
};

use crate::Error;
use peerweave_types::{HeapGeometry, KernelTeam, Pe, SymOffset};
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

    /// The number of a live team in the contexts of kernels ([`KernelContext::teams`](peerweave_types::KernelContext)).
    fn kernel_team(&self, team: TeamId) -> KernelTeam {
        KernelTeam::new(team.0)
    }

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
