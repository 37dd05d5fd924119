//! The contract between the portable API and a backend, which moves the data.
//!
//! Design choices:
//! - **Operations have no generics.** An operation is plain data ([`Op`]): element types, locations
//!   of memory and counts. It takes one indirect call.
//! - **Backends check nothing.** The core checks lengths, ranks, roots, membership, lifetimes and
//!   aliasing once, in `check/`. A backend that finds a violation panics with "peerweave-core bug":
//!   an error would suggest that callers may rely on the check.
//! - **Errors are for events that the caller cannot foresee**: a dead peer, a deadline, PEs that
//!   disagree, too little memory.
//! - **Capabilities are data** ([`Caps`]): callers read them instead of trying an operation.
//! - **Every wait has a deadline**: the deadline of the world, or one that the caller passes.

mod abort;
mod caps;
mod combine;
mod device;
pub(crate) mod error;
mod op;
mod rms_norm;

pub use abort::AbortWord;
pub use caps::{AccumulatorType, AfterFailure, CallChecking, Caps, NanRule, PrivateBuffers, ReductionCaps, ReductionOrder};
pub use combine::{combine_in_order, function_panicked};
pub use device::{DeviceOwner, Keep};
pub(crate) use device::{Held, Kept, KeptPool, Owner};
pub use op::{
    Atomic, AtomicKind, BoundKernel, Collective, CollectiveKind, CollectiveShape, Combine, Copy, Direction, Fill, Get,
    GetElement, Launch, Op, Place, PointToPoint, Put, PutElement, Signal, Special, Strided, Until, VectorCounts, WaitMode,
    WaitUntil, WaitValues,
};
pub use rms_norm::{NormScale, Quantization, RmsNorm};

use crate::Error;
use peerweave_types::{DType, HeapGeometry, KernelTeam, Pe, SymOffset, TeamShape};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A backend: it moves data through shared memory or between GPUs, or only records the calls.
///
/// # Safety
/// An implementation promises:
/// - **\[B1\]** A memory range of an [`Op`] is accessed only inside its bounds, and only from the
///   call of `submit` or `run` until the operation has completed or failed. After a failure, no
///   thread or process accesses private memory of the caller.
/// - **\[B2\]** The memory that [`Backend::local`] points into stays mapped until the backend is
///   dropped.
/// - **\[B3\]** A completed wait (signal, barrier, ticket) makes every put visible that was ordered
///   before it.
/// - **\[B4\]** Accesses to symmetric memory, and to private memory that an [`Op`] names, stay
///   defined when others access the same bytes at the same time. Private memory may be a plain
///   slice, or a buffer that another thread reads or another stream writes.
/// - **\[B5\]** A call after [`Backend::finalize`], or one that races with it or with
///   [`Backend::release`], returns an error or an unspecified value, and has no other effect.
/// - **\[B7\]** If [`Backend::run`] fails while work that it has started may still access symmetric
///   or device memory, it has called `keep`. It holds or leaks the returned value until the work
///   has ended.
/// - **\[B8\]** A backend whose [`Caps::device`] names a device calls `keep` first. It notifies the
///   [`DeviceOwner`]s in the returned value before and after it enqueues the operation
///   ([`Keep::device_owners`]).
pub unsafe trait Backend: Any + Send + Sync + fmt::Debug {
    /// Returns the short name of the backend: `host`, `cuda`, `noop`.
    fn name(&self) -> &'static str;

    /// Returns the capabilities of the backend.
    fn caps(&self) -> &Caps;

    /// Returns the PEs of the job.
    fn job(&self) -> &JobShape;

    /// Returns how the symmetric heap is mapped in this process; `None` if segments are not at
    /// equal distances, or if some PEs cannot be accessed by address.
    fn geometry(&self) -> Option<HeapGeometry>;

    /// Returns the default deadline of waits.
    fn deadline(&self) -> Duration;

    /// Allocates symmetric memory. Collective over all PEs: all must make the same request;
    /// otherwise each PE gets an error.
    fn allocate(&self, request: &Allocation) -> Result<SymOffset, Error>;

    /// Releases symmetric memory, unless the calls mismatch. Collective over all PEs. Waits for the
    /// pending operations of this PE on all streams.
    fn release(&self, at: SymOffset) -> Result<(), Error>;

    /// Returns the address of a symmetric offset in the segment of this PE.
    fn local(&self, at: SymOffset) -> LocalAddress;

    /// Returns the address at which this PE can access a symmetric offset of `pe`, or `None` if the
    /// memory of that PE is not mapped. The address has the kind that [`Backend::local`] returns.
    fn address_of(&self, pe: Pe, at: SymOffset) -> Option<LocalAddress>;

    /// Copies from the symmetric memory of this PE, and returns when the copy is complete. The
    /// result is defined even if a peer writes the memory meanwhile. The copy is not ordered with
    /// the operations of any stream.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline; errors of the system. After an error no thread may still
    /// write to `into`: a backend whose copy can outlast the call copies through its own memory.
    ///
    /// # Safety
    /// `at .. at + bytes` lies in one live allocation; `into` is valid for writes of `bytes` and is
    /// not symmetric memory.
    unsafe fn read_local(&self, at: SymOffset, into: *mut u8, bytes: usize) -> Result<(), Error>;

    /// Copies to the symmetric memory of this PE, like [`Backend::read_local`].
    ///
    /// # Errors
    /// As for [`Backend::read_local`].
    ///
    /// # Safety
    /// `at .. at + bytes` lies in one live allocation; `from` is valid for reads of `bytes` and is
    /// not symmetric memory.
    unsafe fn write_local(&self, at: SymOffset, from: *const u8, bytes: usize) -> Result<(), Error>;

    /// Sets `count` elements of the symmetric memory of this PE, like [`Backend::write_local`]. The
    /// new value of each element is the first `element_bytes` bytes of `bits` in memory, at most 8.
    ///
    /// # Errors
    /// As for [`Backend::read_local`].
    ///
    /// # Safety
    /// The elements lie in one live allocation.
    unsafe fn fill_local(&self, at: SymOffset, bits: u64, element_bytes: usize, count: usize) -> Result<(), Error> {
        const CHUNK_BYTES: usize = 2048;
        let (mut chunk, element) = ([0u8; CHUNK_BYTES], &bits.to_ne_bytes()[..element_bytes]);
        for part in chunk.chunks_exact_mut(element_bytes) {
            part.copy_from_slice(element);
        }
        let whole = CHUNK_BYTES / element_bytes * element_bytes;
        let bytes = count * element_bytes;
        for start in (0..bytes).step_by(whole) {
            // SAFETY: guaranteed by the caller: the bytes written lie within the `bytes` bytes at
            // `at`; `chunk` is local to this function.
            unsafe { self.write_local(at.plus(start as u64), chunk.as_ptr(), whole.min(bytes - start)) }?;
        }
        Ok(())
    }

    /// Splits a team. Collective over the parent. Ranks with the same color form a team, ordered by
    /// key, then by rank in the parent. A rank that passes no `part` gets no team. `call` must be
    /// the same on all ranks; otherwise each rank gets an error.
    fn team_split(&self, parent: TeamId, call: SplitCall, part: Option<SplitPart>) -> Result<Option<TeamRecord>, Error>;

    /// Creates a team of these PEs, in this order. Collective over `members`: other PEs do not
    /// call. The list contains this PE, and no PE twice. If members wait for each other with
    /// different lists, they get [`Error::Mismatch`].
    fn team_of(&self, members: &[Pe]) -> Result<TeamRecord, Error>;

    /// Destroys a team, after its earlier operations. Collective over the team. Never called for
    /// the world. A mismatch leaves the team usable.
    fn team_destroy(&self, team: TeamId) -> Result<(), Error>;

    /// Returns the number of a live team in the contexts of kernels
    /// ([`KernelContext::teams`](peerweave_types::KernelContext)).
    fn kernel_team(&self, team: TeamId) -> KernelTeam {
        KernelTeam::new(team.0)
    }

    /// Returns the reason why operations of the team fail from now on; `None` if the team has not
    /// failed. A team fails on a PE when an operation of it has failed in a way that leaves its
    /// ranks at different operations.
    fn team_failure(&self, team: TeamId) -> Option<Error>;

    /// Returns the error of a call that waits only for `pe`, if `pe` is known to have died or left.
    /// The error is an [`Error::Peer`] that names `pe`, or the PE whose failure ended `pe`. Returns
    /// `None` while `pe` may still participate, or if the backend does not know.
    fn lost(&self, call: &'static str, pe: Pe) -> Option<Error> {
        let _ = (call, pe);
        None
    }

    /// Records that a call of this PE fails with an error that [`Backend::lost`] returned, and
    /// returns that error. Other PEs that later find that this PE has ended can then name the first
    /// failure.
    fn record_loss(&self, error: Error) -> Error {
        error
    }

    /// Creates an ordered queue.
    fn stream(&self) -> Result<Arc<dyn StreamBackend>, Error>;

    /// Returns whether this backend created the queue, by [`Backend::stream`] or by a function of
    /// the backend that wraps a device stream.
    fn owns(&self, stream: &dyn StreamBackend) -> bool;

    /// Runs an operation on the calling thread and returns when it is complete. If the operation
    /// fails before its work has ended, for example at the deadline, the backend keeps the memory
    /// of that work alive with `keep` (\[B7\]). Private memory is the exception, because no work
    /// accesses it after a failure (\[B1\]).
    ///
    /// # Safety
    /// The memory that `op` names is valid for the operation until this call returns. Symmetric and
    /// device memory is also valid while the value that `keep` returned lives.
    unsafe fn run(&self, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Outcome, Error>;

    /// Ends the job on all PEs with the exit code `code`, whatever they are doing. If several PEs
    /// abort, the first abort determines the code.
    ///
    /// If PEs are processes, every process exits with that status, including this one, and the call
    /// does not return. If PEs are threads, the calls of every PE fail within milliseconds, and
    /// this call returns [`Error::Aborted`] with the PE and the code of the first abort.
    fn abort(&self, code: u8) -> Error;

    /// Returns the word that [`Backend::abort`] sets, and that calls of all PEs of this process
    /// check. The default word is never set. It suits a backend whose PEs are processes, which exit
    /// instead.
    fn abort_word(&self) -> AbortWord {
        AbortWord::default()
    }

    /// Creates a backend of the PEs that remain, with memory of its own: see
    /// [`World::shrink`](crate::World::shrink). Collective over the PEs that have neither died nor
    /// left. From this call on, this backend runs no operation between PEs. If the call succeeds,
    /// the only later calls are those that access this PE's own memory.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the PEs that have neither called nor ended. The call can be made
    /// again.
    fn shrink(&self) -> Result<Shrunk, Error> {
        let why = "the PEs that remain share no memory in which they could agree";
        Err(Error::Unsupported { call: "shrink", backend: self.name(), why })
    }

    /// Ends the job on this PE. Collective over all PEs. Waits for pending operations. The core
    /// starts no operation after this call.
    fn finalize(&self) -> Result<(), Error>;

    /// Returns a description of pending operations and of the PEs that they wait for, for `info`
    /// and error reports.
    fn describe(&self) -> String;
}

/// An ordered queue of operations. Each operation starts when the one before it is complete.
///
/// # Safety
/// As for [`Backend`], and in addition **\[B6\]**: if `submit` returns [`Submitted::Queued`], it
/// has called `keep`, and the queue holds the returned value until the operation has completed or
/// failed. If a deadline passes before the work of the operation has ended, the queue holds or
/// leaks the value until the work has ended. If `submit` returns [`Submitted::Captured`], the graph
/// holds the value until the graph and everything made from it are destroyed.
pub unsafe trait StreamBackend: Any + Send + Sync + fmt::Debug {
    /// Enqueues an operation. If the queue is idle, the operation may run on the calling thread for
    /// about a millisecond.
    ///
    /// # Safety
    /// The memory that `op` names is valid for the operation while the value that `keep` returned
    /// lives, or, if `keep` was not called, until this call returns.
    unsafe fn submit(&self, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Submitted, Error>;

    /// Waits until all enqueued operations are complete, and returns the first failure since the
    /// last call.
    fn synchronize(&self, within: Duration) -> Result<(), Error>;

    /// Returns whether all enqueued operations are complete.
    fn is_idle(&self) -> bool;

    /// Records an event after all operations enqueued so far.
    fn record(&self) -> Result<Arc<dyn EventBackend>, Error>;

    /// Makes later operations wait for an event of another queue of the same backend.
    fn wait_event(&self, event: &Arc<dyn EventBackend>) -> Result<(), Error>;
}

/// An event in a queue.
pub trait EventBackend: Any + Send + Sync + fmt::Debug {
    /// Returns whether the queue has passed the event.
    fn is_complete(&self) -> bool;
    /// Waits until the queue has passed the event. Fails if an earlier operation of the queue
    /// failed.
    fn wait(&self, within: Duration) -> Result<(), Error>;
    /// Returns the time from `earlier` to this event. Returns `None` if a queue has not passed its
    /// event yet, if this event was passed first, or if the clocks of the two queues cannot be
    /// compared. `earlier` is an event of the same backend.
    fn elapsed_since(&self, earlier: &dyn EventBackend) -> Option<Duration>;
}

/// An enqueued operation that may not be complete yet.
pub trait Pending: Send + Sync + fmt::Debug {
    /// Returns whether the operation has completed or failed.
    fn is_complete(&self) -> bool;
    /// Waits until the operation has completed or failed.
    fn wait(&self, within: Duration) -> Result<Outcome, Error>;
}

/// The state of an operation after it was enqueued.
#[derive(Debug)]
pub enum Submitted {
    /// The operation is complete.
    Complete(Outcome),
    /// The operation is pending; the queue keeps the operation's memory alive.
    Queued(Arc<dyn Pending>),
    /// The operation was captured and has not run. A graph contains it, holds its memory, and may
    /// run it any number of times.
    Captured,
}

/// The result of a complete operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No result.
    Done,
    /// The bits of one element or word.
    Word(u64),
    /// The indices of the words that satisfied a wait, in ascending order.
    Indices(Vec<usize>),
    /// The condition of a test does not hold.
    NotYet,
}

/// The location of symmetric memory, as this PE accesses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LocalAddress {
    /// In memory that the host can access.
    Host(*mut u8),
    /// In memory that only a device accesses.
    Device {
        /// The address for kernels and copies of that device.
        address: u64,
        /// The number of the device in this process.
        ordinal: usize,
    },
}

/// The PEs of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobShape {
    /// This PE.
    pub my_pe: Pe,
    /// Number of PEs.
    pub n_pes: usize,
    /// The PEs of this machine, ascending; `my_pe` is among them.
    pub local: Vec<Pe>,
}

/// The number of a team in its backend. The world is [`TeamId::WORLD`]. A backend that communicates
/// does not soon reuse the number of a destroyed team, so that a late call does not reach another
/// team.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TeamId(pub u32);

impl TeamId {
    /// The team of all PEs, in PE order.
    pub const WORLD: Self = Self(0);
}

/// A new team, as its backend describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TeamRecord {
    /// The number of the team.
    pub id: TeamId,
    /// The members of the team in rank order; `my_pe` is among them.
    pub members: Vec<Pe>,
}

/// The result of [`Backend::shrink`].
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The new backend.
    pub backend: Arc<dyn Backend>,
    /// The number that each PE of the new backend has in the old one, ascending.
    pub former: Vec<Pe>,
}

/// The request of one rank in a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitPart {
    /// Ranks of the same color form a team.
    pub color: u64,
    /// Orders the ranks of a team.
    pub key: i64,
}

/// The call that splits a team, with the arguments that must be equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SplitCall {
    /// [`Team::split`](crate::Team::split), whose colors and keys may differ.
    Colors,
    /// [`Team::split_strided`](crate::Team::split_strided). The shape fits the parent.
    Strided(TeamShape),
    /// [`Team::split_2d`](crate::Team::split_2d), which splits twice.
    TwoD {
        /// The number of ranks in a row, at most the size of the parent.
        x_range: usize,
        /// Whether this is the second split, into columns.
        columns: bool,
    },
    /// [`World::local_team`](crate::World::local_team).
    Local,
}

impl SplitCall {
    /// Returns the name of the call.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Colors => "split",
            Self::Strided(_) => "split_strided",
            Self::TwoD { .. } => "split_2d",
            Self::Local => "local_team",
        }
    }
}

/// Formats the call with the arguments that must be equal on all ranks, for errors.
impl fmt::Display for SplitCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            // The stride of a shape of one rank has no meaning.
            Self::Strided(TeamShape { start, size: 1, .. }) => write!(f, " into 1 rank from {start} at stride 1"),
            Self::Strided(TeamShape { start, stride, size }) => {
                write!(f, " into {size} ranks from {start} at stride {stride}")
            }
            Self::TwoD { x_range, columns } => {
                write!(f, " with x_range {x_range}, into {}", if *columns { "columns" } else { "rows" })
            }
            Self::Colors | Self::Local => Ok(()),
        }
    }
}

/// A request for symmetric memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The number of bytes; 0 gives an offset that no operation accesses.
    pub bytes: usize,
    /// The type of the elements.
    pub dtype: DType,
    /// The alignment, a power of two. Allocations are aligned to at least 64 bytes.
    pub align: usize,
    /// Whether the memory of this PE is set to zero before the call of any PE returns.
    pub zeroed: bool,
}

/// Formats the call, for errors.
impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (elements, dtype) = (self.bytes / self.dtype.size_bytes(), self.dtype.rust_name());
        let zeroed = if self.zeroed { "zeroed" } else { "not zeroed" };
        write!(f, "alloc of {elements} elements of {dtype} aligned to {}, {zeroed}", self.align)
    }
}
