//! The contract between the portable API and a backend, which moves the data.
//!
//! Design choices:
//! - **Operations have no generics.** An operation is plain data ([`Op`]): element types, locations
//!   of memory and counts. Passing an operation to a backend takes one indirect call.
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

/// The methods that a backend implements. A backend moves data through shared memory or between
/// GPUs, or only simulates a job ([`Noop`](crate::noop::Noop)).
///
/// # Safety
/// [`Backend::run`] and [`StreamBackend::submit`] get a closure `keep`. The closure returns a
/// [`Keep`], a value that keeps the memory of the operation allocated.
///
/// An implementation makes the promises below. The promise \[B6\] concerns streams: see
/// [`StreamBackend`].
/// - **\[B1\]** The backend accesses the memory of an [`Op`] only inside the ranges of the
///   operation. The accesses happen only from the call to `submit` or `run` until the operation has
///   completed or failed. After a failure, no thread or process accesses the caller's private
///   memory.
/// - **\[B2\]** The memory at the addresses that [`Backend::local`] returns stays mapped until the
///   backend is dropped.
/// - **\[B3\]** When a barrier completes, all puts that were ordered before the barrier are
///   visible. When a wait for a signal completes, all puts that were ordered before the signal are
///   visible. When a wait for a ticket completes, all puts that were ordered before the ticket's
///   operation are visible.
/// - **\[B4\]** The backend's accesses to symmetric memory, and to the private memory of an [`Op`],
///   are defined even if other PEs, threads or streams access the same bytes concurrently. Private
///   memory may be a plain slice, or a buffer that another thread reads or another stream writes.
/// - **\[B5\]** A call that follows [`Backend::finalize`] returns an error or an unspecified value,
///   and has no other effect. The same is true for a call that races with `finalize` or with
///   [`Backend::release`].
/// - **\[B7\]** [`Backend::run`] may fail while its work is still in progress. If this work may
///   still access symmetric or device memory, `run` has called `keep`. The backend then holds the
///   [`Keep`] until the work has ended, or leaks the [`Keep`].
/// - **\[B8\]** If [`Caps::device`] names a device, the backend calls `keep` before it enqueues an
///   operation. Before and after it enqueues the operation, the backend notifies the
///   [`DeviceOwner`]s in the [`Keep`]: see [`Keep::device_owners`].
pub unsafe trait Backend: Any + Send + Sync + fmt::Debug {
    /// Returns the short name of the backend, such as `host`, `cuda` or `noop`.
    fn name(&self) -> &'static str;

    /// Returns the capabilities of the backend.
    fn caps(&self) -> &Caps;

    /// Returns the shape of the job: this PE, the number of PEs, and the PEs of this machine.
    fn job(&self) -> &JobShape;

    /// Returns the addresses at which the symmetric memory of all PEs is mapped in this process.
    /// Returns `None` if the distance from one PE's memory to the next PE's memory varies, or if
    /// this process cannot access every PE's memory by address.
    fn geometry(&self) -> Option<HeapGeometry>;

    /// Returns the time after which a wait fails by default.
    fn deadline(&self) -> Duration;

    /// Allocates symmetric memory. Collective over all PEs: all PEs must make the same request,
    /// otherwise every PE gets an error.
    fn allocate(&self, request: &Allocation) -> Result<SymOffset, Error>;

    /// Releases symmetric memory. Collective over all PEs. If the calls of the PEs differ, nothing
    /// is released. Waits for this PE's pending operations on all streams.
    fn release(&self, at: SymOffset) -> Result<(), Error>;

    /// Returns the address of the offset `at` in this PE's symmetric memory.
    fn local(&self, at: SymOffset) -> LocalAddress;

    /// Returns the address at which this PE can access the offset `at` in the symmetric memory of
    /// `pe`. Returns `None` if the memory of `pe` is not mapped. The address has the same kind
    /// (host or device) as the address that [`Backend::local`] returns.
    fn address_of(&self, pe: Pe, at: SymOffset) -> Option<LocalAddress>;

    /// Copies `bytes` bytes from this PE's symmetric memory to `into`, and returns when the copy is
    /// complete. The result is defined even if a peer writes the memory during the copy. The copy
    /// is not ordered with the operations on streams.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline; errors of the operating system or the device. After an
    /// error, the backend must not write to `into` any more. A backend whose copy can outlast the
    /// call must therefore copy through its own memory.
    ///
    /// # Safety
    /// `at .. at + bytes` lies in one live allocation; `into` is valid for writes of `bytes` and is
    /// not symmetric memory.
    unsafe fn read_local(&self, at: SymOffset, into: *mut u8, bytes: usize) -> Result<(), Error>;

    /// Copies `bytes` bytes from `from` to this PE's symmetric memory. Like
    /// [`Backend::read_local`], but in the other direction.
    ///
    /// # Errors
    /// As for [`Backend::read_local`].
    ///
    /// # Safety
    /// `at .. at + bytes` lies in one live allocation; `from` is valid for reads of `bytes` and is
    /// not symmetric memory.
    unsafe fn write_local(&self, at: SymOffset, from: *const u8, bytes: usize) -> Result<(), Error>;

    /// Sets `count` elements of this PE's symmetric memory to one value. Like
    /// [`Backend::write_local`], the call returns when the memory is written, and is not ordered
    /// with operations on streams. The value is the first `element_bytes` bytes of `bits` in native
    /// byte order. `element_bytes` is at most 8.
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

    /// Splits a team. Collective over the parent team. Ranks that pass the same color form a new
    /// team, in which ranks are ordered by key, then by rank in the parent. A rank that passes no
    /// `part` gets no team. All ranks must pass the same `call`, otherwise every rank gets an
    /// error.
    fn team_split(&self, parent: TeamId, call: SplitCall, part: Option<SplitPart>) -> Result<Option<TeamRecord>, Error>;

    /// Creates a team in which rank `r` is PE `members[r]`. Collective over `members`: other PEs do
    /// not make this call. The list contains this PE, and contains no PE twice. If two PEs are in
    /// each other's lists, but pass different lists, both get [`Error::Mismatch`].
    fn team_of(&self, members: &[Pe]) -> Result<TeamRecord, Error>;

    /// Destroys a team, after the team's earlier operations are complete. Collective over the team.
    /// This method is never called for the team of all PEs. If the calls of the ranks differ, the
    /// team stays usable.
    fn team_destroy(&self, team: TeamId) -> Result<(), Error>;

    /// Returns the number by which kernels name a live team: its index in
    /// [`KernelContext::teams`](peerweave_types::KernelContext).
    fn kernel_team(&self, team: TeamId) -> KernelTeam {
        KernelTeam::new(team.0)
    }

    /// Returns the reason why operations of the team fail from now on; `None` if the team has not
    /// failed. After a failed operation, the ranks of a team may disagree on which operation is
    /// next. In this case, the team has failed.
    fn team_failure(&self, team: TeamId) -> Option<Error>;

    /// Returns the error for a call that waits only for `pe`, if `pe` is known to have died or left
    /// the job. The error is an [`Error::Peer`] that names `pe`, or the PE whose failure caused
    /// `pe` to end. If the job has been aborted, the error may instead be [`Error::Aborted`].
    /// Returns `None` if `pe` may still participate, or if the backend does not know.
    fn lost(&self, call: &'static str, pe: Pe) -> Option<Error> {
        let _ = (call, pe);
        None
    }

    /// Records `error`, which [`Backend::lost`] has returned and with which a call of this PE
    /// fails. If this PE ends because of `error`, other PEs can then name the original failure.
    /// Returns the error for the caller of the failed call: `error`, or [`Error::Aborted`] if the
    /// job has been aborted.
    fn record_loss(&self, error: Error) -> Error {
        error
    }

    /// Creates a stream, which is an ordered queue of operations.
    fn stream(&self) -> Result<Arc<dyn StreamBackend>, Error>;

    /// Returns whether this backend created `stream`, either by [`Backend::stream`] or by a
    /// function that wraps a device stream.
    fn owns(&self, stream: &dyn StreamBackend) -> bool;

    /// Runs an operation on the calling thread and returns when the operation is complete.
    ///
    /// An operation may fail before its work has ended, for example at the deadline. The backend
    /// then calls `keep`, and holds the returned [`Keep`] until the work has ended: see the promise
    /// \[B7\] of [`Backend`]. While the [`Keep`] exists, the symmetric memory and the device memory
    /// of the operation stay allocated. Private memory need not stay allocated: after a failure, no
    /// work accesses private memory (promise \[B1\]).
    ///
    /// # Safety
    /// The memory that `op` accesses is valid until this call returns. Symmetric memory and device
    /// memory also stay valid while the [`Keep`] that `keep` returned exists.
    unsafe fn run(&self, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Outcome, Error>;

    /// Ends the job on all PEs with the exit code `code`, whatever the PEs are doing. If several
    /// PEs abort, the first abort determines the exit code.
    ///
    /// If PEs are processes, every process, including this one, exits with the status `code`, and
    /// the call does not return. If PEs are threads, all calls on all PEs fail within milliseconds.
    /// This call then returns [`Error::Aborted`] with the PE that aborted first, and the exit code
    /// of that abort.
    fn abort(&self, code: u8) -> Error;

    /// Returns the word that [`Backend::abort`] sets, and that the calls of all PEs in this process
    /// check. The default implementation returns a word that is never set. The default suits a
    /// backend whose PEs are processes, because an abort ends the process.
    fn abort_word(&self) -> AbortWord {
        AbortWord::default()
    }

    /// Creates a backend for the PEs that remain, with its own memory: see
    /// [`World::shrink`](crate::World::shrink). Collective over the PEs that have neither died nor
    /// left. From this call on, the old backend runs no operations between PEs. After the call has
    /// succeeded, the old backend is only used for accesses to this PE's own memory.
    ///
    /// # Errors
    /// [`Error::Timeout`], which names the PEs that have neither made this call nor ended. After a
    /// timeout, the call can be made again.
    fn shrink(&self) -> Result<Shrunk, Error> {
        let why = "the remaining PEs would agree on the new world through shared memory, which this backend does not have";
        Err(Error::Unsupported { call: "shrink", backend: self.name(), why })
    }

    /// Ends the job on this PE, after this PE's pending operations have ended. Collective over all
    /// PEs. After this call, peerweave-core starts no operation.
    fn finalize(&self) -> Result<(), Error>;

    /// Returns a text for `info` and for error reports. The text describes the pending operations
    /// and the PEs that these operations wait for.
    fn describe(&self) -> String;
}

/// A stream: an ordered queue in which each operation starts when the operation before it is
/// complete.
///
/// # Safety
/// An implementation makes all promises of [`Backend`], and the promise **\[B6\]**: the memory of
/// an operation stays allocated while the work of the operation may access the memory. For this
/// purpose, `submit` gets a closure `keep`, which returns a [`Keep`]. While the [`Keep`] exists,
/// the memory stays allocated. The result of `submit` determines who holds the [`Keep`]:
/// - [`Submitted::Complete`]: no [`Keep`] is needed, because the work has ended.
/// - [`Submitted::Queued`]: `submit` has called `keep`, and the queue holds the [`Keep`] until the
///   operation has completed or failed. If the operation fails at a deadline before its work has
///   ended, the queue holds the [`Keep`] until the work has ended, or leaks the [`Keep`].
/// - [`Submitted::Captured`]: `submit` has called `keep`, and the graph holds the [`Keep`]. The
///   [`Keep`] is dropped only after the graph, and everything that was instantiated from the graph,
///   has been destroyed.
pub unsafe trait StreamBackend: Any + Send + Sync + fmt::Debug {
    /// Enqueues an operation. If the queue is idle, `submit` may first run the operation on the
    /// calling thread for about a millisecond, and enqueue the operation only if it is not complete
    /// by then.
    ///
    /// # Safety
    /// The memory that `op` accesses stays valid while the [`Keep`] that `keep` returned exists. If
    /// `submit` does not call `keep`, the memory stays valid until `submit` returns.
    unsafe fn submit(&self, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Submitted, Error>;

    /// Waits until all enqueued operations have completed or failed, for at most `within`. Returns
    /// the first failure of an operation since the last call of this method.
    fn synchronize(&self, within: Duration) -> Result<(), Error>;

    /// Returns whether all enqueued operations have completed or failed.
    fn is_idle(&self) -> bool;

    /// Records an event. The event is complete when all operations that were enqueued before this
    /// call have completed or failed.
    fn record(&self) -> Result<Arc<dyn EventBackend>, Error>;

    /// Makes the later operations of this stream wait for `event`. The event belongs to a stream of
    /// the same backend.
    fn wait_event(&self, event: &Arc<dyn EventBackend>) -> Result<(), Error>;
}

/// An event that has been recorded on a stream. The event is complete when all operations that were
/// enqueued before the event have ended.
pub trait EventBackend: Any + Send + Sync + fmt::Debug {
    /// Returns whether all operations before the event have completed or failed.
    fn is_complete(&self) -> bool;
    /// Waits until all operations before the event have completed or failed, for at most `within`.
    /// Fails if an operation before the event has failed.
    fn wait(&self, within: Duration) -> Result<(), Error>;
    /// Returns the time from `earlier` to this event. Returns `None` if one of the events is not
    /// complete yet, or if this event became complete before `earlier`. Also returns `None` if the
    /// clocks of the two events cannot be compared. `earlier` belongs to the same backend.
    fn elapsed_since(&self, earlier: &dyn EventBackend) -> Option<Duration>;
}

/// An enqueued operation for which a caller can wait.
pub trait Pending: Send + Sync + fmt::Debug {
    /// Returns whether the operation has completed or failed.
    fn is_complete(&self) -> bool;
    /// Waits until the operation has completed or failed, for at most `within`, and returns the
    /// result.
    fn wait(&self, within: Duration) -> Result<Outcome, Error>;
}

/// The state of an operation after `submit` has returned.
#[derive(Debug)]
pub enum Submitted {
    /// The operation is complete.
    Complete(Outcome),
    /// The operation is pending, and the queue keeps the operation's memory alive.
    Queued(Arc<dyn Pending>),
    /// The operation has been captured into a graph and has not run. The graph keeps the
    /// operation's memory alive, and may run the operation any number of times.
    Captured,
}

/// The result of a complete operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The operation has no result.
    Done,
    /// The result is one element or one memory word, as bits.
    Word(u64),
    /// The result is a list of indices: the words that satisfied the wait, in ascending order.
    Indices(Vec<usize>),
    /// The operation is a test, and its condition does not hold.
    NotYet,
}

/// The address at which this PE accesses symmetric memory: a host address, or a device address if
/// the host cannot access the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LocalAddress {
    /// An address in memory that the host can access.
    Host(*mut u8),
    /// An address in memory that only a device can access.
    Device {
        /// The address that kernels and copies on the device use.
        address: u64,
        /// The ordinal of the device in this process.
        ordinal: usize,
    },
}

/// The size of a job, the number of this PE in the job, and the PEs on this PE's machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobShape {
    /// The number of this PE.
    pub my_pe: Pe,
    /// The number of PEs in the job.
    pub n_pes: usize,
    /// The PEs of this machine, ascending; `my_pe` is among them.
    pub local: Vec<Pe>,
}

/// The number of a team in its backend. The team of all PEs is [`TeamId::WORLD`]. A backend that
/// communicates does not soon reuse the number of a destroyed team, because a delayed call on the
/// destroyed team could otherwise reach the new team.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TeamId(pub u32);

impl TeamId {
    /// The team of all PEs, in which the PEs are in ascending order.
    pub const WORLD: Self = Self(0);
}

/// A description of a new team, which the backend returns. From this description, the core creates
/// a [`Team`](crate::Team).
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
    /// The backend of the new world.
    pub backend: Arc<dyn Backend>,
    /// The numbers that the PEs of the new backend had in the old backend, indexed by the new
    /// numbers. The old numbers are ascending.
    pub former: Vec<Pe>,
}

/// The color and the key that one rank passes when a team is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitPart {
    /// The color: ranks with the same color form a team.
    pub color: u64,
    /// The key, by which the ranks of the new team are ordered.
    pub key: i64,
}

/// A call that splits a team. The variants contain only the arguments that must be the same on all
/// ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SplitCall {
    /// The call is [`Team::split`](crate::Team::split), for which ranks may pass different colors
    /// and keys.
    Colors,
    /// The call is [`Team::split_strided`](crate::Team::split_strided) with this shape. Every rank
    /// in the shape is a rank of the parent team.
    Strided(TeamShape),
    /// The call is [`Team::split_2d`](crate::Team::split_2d), which splits the team twice: into
    /// rows and into columns.
    TwoD {
        /// The number of ranks in a row, at most the number of ranks in the parent team. The last
        /// row may be shorter.
        x_range: usize,
        /// `true` for the split into columns, `false` for the split into rows.
        columns: bool,
    },
    /// The call is [`World::local_team`](crate::World::local_team).
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

/// Formats the call for error messages, with the arguments that must be the same on all ranks.
impl fmt::Display for SplitCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            // The stride of a shape of one rank has no meaning.
            Self::Strided(TeamShape { start, size: 1, .. }) => write!(f, " into 1 rank from rank {start} at stride 1"),
            Self::Strided(TeamShape { start, stride, size }) => {
                write!(f, " into {size} ranks from rank {start} at stride {stride}")
            }
            Self::TwoD { x_range, columns } => {
                write!(
                    f,
                    " of the team into {} with x_range {x_range} (ranks per row)",
                    if *columns { "columns" } else { "rows" }
                )
            }
            Self::Colors | Self::Local => Ok(()),
        }
    }
}

/// A request for symmetric memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The number of bytes, which may be 0. A request for 0 bytes also returns an offset, but no
    /// operation accesses memory at this offset.
    pub bytes: usize,
    /// The type of the elements.
    pub dtype: DType,
    /// The minimum alignment in bytes, a power of two. Every allocation is aligned to at least 64
    /// bytes.
    pub align: usize,
    /// Whether the memory is set to zero. If so, the memory of every PE is zero before the call
    /// returns on any PE.
    pub zeroed: bool,
}

/// Formats the request as a call, for error messages.
impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (elements, dtype, align) = (self.bytes / self.dtype.size_bytes(), self.dtype.rust_name(), self.align);
        let zeroed = if self.zeroed { "zeroed" } else { "not zeroed" };
        write!(f, "alloc of {elements} elements of {dtype} aligned to {align} bytes, {zeroed}")
    }
}
