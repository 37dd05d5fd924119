//! The errors of all calls, distinguished by cause: the caller, a peer, a deadline or the system.
//!
//! A message names the call, the team, the value that was found and the value that was expected.

use crate::backend::TeamId;
use peerweave_types::{Compare, DType, FailureKind, KernelOp, Pe, ReduceOp, SymOffset};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// An error of a Peerweave call.
///
/// `Debug` includes the message of `Display`, because `unwrap` and a `main` that returns an error
/// print the `Debug` form.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller has a bug. The call enqueued nothing and notified no peer, so the caller can make
    /// a corrected call.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The PEs of a team made different calls. Every PE of the team gets this error, and the team
    /// stays usable. No call has run, except possibly a small broadcast: see
    /// [`Team::broadcast`](crate::Team::broadcast).
    #[error(transparent)]
    Mismatch(Box<Mismatch>),
    /// A peer has died, has left the job, has failed, or cannot be accessed. Teams that contain the
    /// peer can run no further collectives.
    #[error("{call} on {team}: {pe} {cause}")]
    Peer {
        /// The name of the call that failed.
        call: &'static str,
        /// The team on which the call was made.
        team: TeamName,
        /// The PE that died, left the job, failed or cannot be accessed.
        pe: Pe,
        /// What happened to the peer.
        cause: PeerCause,
    },
    /// The deadline of a call passed before the call was complete.
    #[error(transparent)]
    Timeout(Box<Timeout>),
    /// The operation did not run, because an earlier operation on its stream had failed with an
    /// error other than [`Mismatch`].
    #[error("{call} was skipped: an earlier operation of the stream failed: {because}")]
    Skipped {
        /// The name of the call that was skipped.
        call: &'static str,
        /// The error with which the earlier operation failed.
        because: Arc<Error>,
    },
    /// The operation did not run, because its team had failed earlier. Since that failure, the
    /// ranks of the team may disagree on which operation is next.
    #[error("{call}: {team} is poisoned by an earlier failure: {because}")]
    Poisoned {
        /// The name of the call that failed.
        call: &'static str,
        /// The team that failed earlier.
        team: TeamName,
        /// The error with which the team failed.
        because: Arc<Error>,
    },
    /// A PE has ended the job with [`World::abort`](crate::World::abort). Every later call, on
    /// every PE, fails with this error.
    #[error("{by} has aborted the job with exit code {code}")]
    Aborted {
        /// The PE that aborted the job first.
        by: Pe,
        /// The exit code that the PE `by` passed.
        code: u8,
    },
    /// A kernel failed: one of its operations failed, or one of its threads panicked, trapped or
    /// diverged.
    #[error(transparent)]
    Kernel(Box<KernelFailure>),
    /// The symmetric heap or the machine does not have enough memory.
    #[error("{call}: out of memory: {requested_bytes} bytes requested, {available_bytes} available ({what})")]
    OutOfMemory {
        /// The name of the call that failed.
        call: &'static str,
        /// The number of bytes that the call requested.
        requested_bytes: usize,
        /// The number of bytes that were available.
        available_bytes: usize,
        /// The name of the resource that has run out, such as the symmetric heap.
        what: &'static str,
    },
    /// No team number is free on all PEs that create the team, for example because a PE already
    /// belongs to the maximum number of teams. All PEs that make the call get this error.
    #[error("{call}: no team number is free on all PEs (a PE can belong to at most {max_teams} teams): destroy a team first")]
    TooManyTeams {
        /// The name of the call that failed.
        call: &'static str,
        /// The number of teams that a PE can belong to at the same time, including the team of all
        /// PEs.
        max_teams: usize,
    },
    /// The backend does not support the call, or does not support these arguments.
    #[error("{call}: not supported by the {backend} backend: {why}")]
    Unsupported {
        /// The name of the call that failed.
        call: &'static str,
        /// The name of the backend.
        backend: &'static str,
        /// The reason why the call or its arguments are not supported. If an alternative exists,
        /// the text also names the alternative.
        why: &'static str,
    },
    /// The job could not start, for example because the launcher's environment is wrong, the
    /// rendezvous failed, or a library is missing.
    #[error("{call}: {source}")]
    Setup {
        /// The name of the call that failed.
        call: &'static str,
        /// The error that prevented the job from starting.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A call to the operating system or to a vendor library failed.
    #[error("{call}: {source}")]
    System {
        /// The name of the call that failed.
        call: &'static str,
        /// The error that the failed call returned.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Returns the PEs that caused the error: a peer that died, PEs that missed a deadline, or PEs
    /// that made a different call.
    pub fn blamed(&self) -> Vec<Pe> {
        match self {
            Self::Peer { pe, .. } => vec![*pe],
            Self::Timeout(timeout) => timeout.missing.clone(),
            Self::Mismatch(mismatch) => vec![mismatch.pe],
            Self::Skipped { because, .. } | Self::Poisoned { because, .. } => because.blamed(),
            // The kernel named a PE that the job does not have, so no PE is to blame.
            Self::Kernel(failure) if failure.kind == Some(FailureKind::NoSuchPeer) => Vec::new(),
            Self::Kernel(failure) => failure.missing.into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Converts an error of a new job to the corresponding error of `call` on `team`, a team of the
    /// old job. `old` converts a list of PE numbers from the new job to the old job. Errors other
    /// than [`Error::Peer`], [`Error::Timeout`] and [`Error::Mismatch`] are returned unchanged. A
    /// backend that shrinks a world calls this method if the set-up of the new job fails.
    pub fn renumbered(self, call: &'static str, team: TeamName, old: impl Fn(&[Pe]) -> Vec<Pe>) -> Self {
        let one = |pe: Pe| old(&[pe]).first().copied().unwrap_or(pe);
        match self {
            Self::Peer { pe, cause, .. } => Self::Peer { call, team, pe: one(pe), cause },
            Self::Timeout(timeout) => {
                let missing = old(&timeout.missing);
                Self::Timeout(Box::new(Timeout { call, team, missing, ..*timeout }))
            }
            Self::Mismatch(mismatch) => {
                let pe = one(mismatch.pe);
                Self::Mismatch(Box::new(Mismatch { team, pe, ..*mismatch }))
            }
            error => error,
        }
    }

    /// Returns the kind of misuse; `None` if the error is not a [`Misuse`].
    pub fn misuse(&self) -> Option<&MisuseKind> {
        match self {
            Self::Misuse(misuse) => Some(&misuse.kind),
            _ => None,
        }
    }

    /// Returns the error for `call` if the operating system or a vendor library has failed with
    /// `source`.
    pub fn system(call: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::System { call, source: Arc::new(source) }
    }

    /// Returns the error for `call` if the job could not start because of `source`.
    pub fn setup(call: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Setup { call, source: Arc::new(source) }
    }
}

/// The number and the size of a team, by which error messages name the team.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TeamName {
    /// The number of the team.
    pub id: TeamId,
    /// The number of ranks in the team.
    pub size: usize,
}

impl fmt::Display for TeamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.id == TeamId::WORLD {
            write!(f, "the world ({})", Count(self.size, "PE"))
        } else {
            write!(f, "team {} ({})", self.id.0, Count(self.size, "rank"))
        }
    }
}

/// Formats a count and a noun, such as "2 ranks". If the count is not 1, an "s" is added to the
/// noun.
pub(crate) struct Count(pub(crate) usize, pub(crate) &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

/// What happened to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerCause {
    /// The PE's process exited or was killed without leaving the job.
    Died,
    /// The PE left the job (finalized or dropped its world) while other PEs still needed the PE.
    Left,
    /// The named PE has reported that the operation failed. This cause also applies if another PE
    /// has given up because of the named PE, for example because the named PE did not arrive.
    Failed,
    /// This process could not access the memory of the PE's process.
    Unreachable,
    /// The PE has called [`World::shrink`](crate::World::shrink), and runs no further operations in
    /// this world.
    Shrinks,
}

impl fmt::Display for PeerCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Died => "died",
            Self::Left => "left the job",
            Self::Failed => "failed in the operation",
            Self::Unreachable => "has memory that this process could not read",
            Self::Shrinks => "has called shrink, and runs no more operations of this world",
        })
    }
}

/// A call that did not complete before its deadline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} on {team}: timed out after {seconds:.3} s; {awaited}", seconds = waited.as_secs_f64(), awaited = Awaited { running: *running, missing, holder: *holder, word: *word })]
pub struct Timeout {
    /// The name of the call that failed.
    pub call: &'static str,
    /// The team on which the call was made.
    pub team: TeamName,
    /// How long the call waited.
    pub waited: Duration,
    /// The PEs that the call waited for and that did not arrive. Empty for a wait on a signal word,
    /// because any PE could have set the word.
    pub missing: Vec<Pe>,
    /// The name of another call of this PE for which the failed call waited. The other call is
    /// still running on a stream or on another thread. `None` if the failed call did not wait for
    /// another call of this PE.
    pub running: Option<&'static str>,
    /// The PE that holds the lock, if the call waited for a lock. The holder is also in `missing`,
    /// unless the holder is this PE.
    pub holder: Option<Pe>,
    /// The memory word that did not get the expected value. `None` if the call did not wait for
    /// words, or if the backend does not know their values.
    pub word: Option<AwaitedWord>,
}

impl Timeout {
    /// Creates the error of a call that waited only for the PEs in `missing`, and not for a stream,
    /// a thread, a lock or a memory word.
    pub fn new(call: &'static str, team: TeamName, waited: Duration, missing: Vec<Pe>) -> Self {
        Self { call, team, waited, missing, running: None, holder: None, word: None }
    }
}

impl From<Timeout> for Error {
    fn from(timeout: Timeout) -> Self {
        Self::Timeout(Box::new(timeout))
    }
}

/// A memory word in the error of a wait that timed out. It is the first word, except for excluded
/// words, that did not satisfy the comparison at the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitedWord {
    /// The index of this word among the words of the wait; `None` if the wait is for one word.
    pub index: Option<usize>,
    /// The offset of the word in symmetric memory.
    pub offset: SymOffset,
    /// The integer type of the word.
    pub dtype: DType,
    /// The bits found in the word, zero-extended.
    pub found: u64,
    /// The comparison that the word did not satisfy.
    pub compare: Compare,
    /// The bits of the value with which the word is compared, zero-extended.
    pub value: u64,
}

impl fmt::Display for AwaitedWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offset = self.offset.0;
        match self.index {
            Some(index) => write!(f, "word {index} (symmetric offset {offset})")?,
            None => write!(f, "the word at symmetric offset {offset}")?,
        }
        let sign = Compare::sign_bit(self.dtype);
        let number = |bits: u64| i128::from(bits & !sign) - i128::from(bits & sign);
        let (found, compare, value) = (number(self.found), self.compare, number(self.value));
        write!(f, ": found {found}, expected {compare} {value}")
    }
}

/// Formats what a call was still waiting for when it timed out: another call of this PE, a memory
/// word, the holder of a lock, or PEs.
struct Awaited<'a> {
    running: Option<&'static str>,
    missing: &'a [Pe],
    holder: Option<Pe>,
    word: Option<AwaitedWord>,
}

impl fmt::Display for Awaited<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(call) = self.running {
            write!(f, "this PE is still running {call}")?;
            if self.missing.is_empty() {
                return Ok(());
            }
            f.write_str("; ")?;
        }
        match (self.word, self.holder) {
            (Some(word), _) => word.fmt(f),
            (None, Some(pe)) if self.missing.contains(&pe) => write!(f, "{pe} holds the lock"),
            (None, Some(_)) => f.write_str("this PE already holds the lock"),
            (None, None) => write!(f, "missing: {}", List(self.missing)),
        }
    }
}

/// The failure of a kernel on this PE.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kernel}: {message}")]
pub struct KernelFailure {
    /// The name of the kernel.
    pub kernel: &'static str,
    /// The reason why an operation of the kernel failed. `None` if no operation failed; in that
    /// case, a thread panicked, trapped or diverged.
    pub kind: Option<FailureKind>,
    /// The operation that failed in the kernel; `None` if no operation failed, or if the failed
    /// operation is unknown.
    pub operation: Option<KernelOp>,
    /// The PE that did not arrive or cannot be reached; `None` if no PE caused the failure. For
    /// [`FailureKind::NoSuchPeer`], a PE number that the job does not have.
    pub missing: Option<Pe>,
    /// The code that the kernel passed to `Context::exit`; `None` if there was no such call.
    pub exit_code: Option<u64>,
    /// A description of the failure. If an operation failed, the text names the operation, the
    /// expected value, and the value that was found. If a thread panicked, trapped or diverged, the
    /// text names the block and the thread, if they are known.
    pub message: String,
}

struct List<'a>(&'a [Pe]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("unknown");
        }
        for (i, pe) in self.0.iter().enumerate() {
            write!(f, "{}{pe}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// A mismatch: the PEs of a team made different calls, although all PEs must make the same call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the calls of {team} differ: this PE called {mine}, {pe} called {theirs}")]
pub struct Mismatch {
    /// The team whose PEs made different calls.
    pub team: TeamName,
    /// A PE whose call differs from this PE's call.
    pub pe: Pe,
    /// The call that this PE made, with its type, reduction, root and count.
    pub mine: String,
    /// The call that `pe` made.
    pub theirs: String,
}

/// An incorrect call, which is a bug in the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {kind}")]
pub struct Misuse {
    /// The name of the call that failed.
    pub call: &'static str,
    /// What is wrong with the call.
    pub kind: MisuseKind,
}

/// What is wrong with a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MisuseKind {
    /// A buffer has the wrong length.
    #[error("`{argument}` has {found} elements, expected {expected}")]
    Length {
        /// The name of the parameter that is wrong.
        argument: &'static str,
        /// The length of the buffer that was passed, in elements.
        found: usize,
        /// The length that the call expects, in elements.
        expected: usize,
    },
    /// A buffer's length is not a multiple of the number of ranks in the team.
    #[error("`{argument}` has {found} elements, expected a multiple of {divisor} (the number of ranks in the team)")]
    NotDivisible {
        /// The name of the parameter that is wrong.
        argument: &'static str,
        /// The length of the buffer that was passed, in elements.
        found: usize,
        /// The number of ranks in the team.
        divisor: usize,
    },
    /// The caller passed a rank that the team does not have.
    #[error("`{argument}` is {found}, expected a rank below {team_size} (the number of ranks in the team)")]
    Rank {
        /// The name of the parameter that is wrong.
        argument: &'static str,
        /// The rank that was passed.
        found: u32,
        /// The number of ranks in the team.
        team_size: usize,
    },
    /// A range does not lie within its buffer.
    #[error("`{argument}` has {len} elements, but the call uses elements {start}..{end}")]
    Range {
        /// The name of the parameter that is wrong.
        argument: &'static str,
        /// The index of the first element of the range.
        start: usize,
        /// The index after the last element of the range.
        end: usize,
        /// The length of the buffer, in elements.
        len: usize,
    },
    /// The caller passed an index at which the buffer has no element.
    #[error("`{argument}` is {found}, expected an index below {len}")]
    Index {
        /// The name of the parameter that is wrong.
        argument: &'static str,
        /// The index that was passed.
        found: usize,
        /// The length of the buffer, in elements.
        len: usize,
    },
    /// A range ends before it starts.
    #[error("`{argument}` is {start}..{end}, which ends before it starts")]
    ReversedRange {
        /// The name of the parameter that is wrong.
        argument: &'static str,
        /// The index of the first element of the range.
        start: usize,
        /// The index after the last element of the range.
        end: usize,
    },
    /// A parameter exceeds a limit of the backend.
    #[error("`{argument}` is {found}, expected at most {max} ({limit})")]
    Limit {
        /// The name of the parameter that is wrong.
        argument: &'static str,
        /// The value that was passed.
        found: usize,
        /// The largest valid value.
        max: usize,
        /// A description of the limit.
        limit: &'static str,
    },
    /// The handle refers to a part of an allocation, but the call needs a handle to the whole
    /// allocation.
    #[error("`{argument}` covers elements {start}..{end} of an allocation of {len}, expected the whole allocation")]
    PartOfAllocation {
        /// The name of the parameter that is wrong.
        argument: &'static str,
        /// The index, within the allocation, of the first element to which the handle refers.
        start: usize,
        /// The index, within the allocation, after the last element to which the handle refers.
        end: usize,
        /// The length of the allocation, in elements.
        len: usize,
    },
    /// Two buffers share bytes.
    #[error("`{first}` and `{second}` overlap: {advice}")]
    Overlap {
        /// The name of the parameter whose buffer overlaps the buffer of the parameter `second`.
        first: &'static str,
        /// The name of the parameter whose buffer overlaps the buffer of the parameter `first`.
        second: &'static str,
        /// What to pass or to call instead.
        advice: &'static str,
    },
    /// Two ranges of memory overlap. The call uses both ranges, and writes to at least one of them.
    #[error("{what} overlap")]
    OverlapWithin {
        /// A description of the ranges that overlap.
        what: &'static str,
    },
    /// The buffer has been released.
    #[error("`{argument}` was released")]
    Released {
        /// The name of the parameter that is wrong.
        argument: &'static str,
    },
    /// The buffer belongs to another world.
    #[error("`{argument}` belongs to another world")]
    ForeignBuffer {
        /// The name of the parameter that is wrong.
        argument: &'static str,
    },
    /// The memory does not belong to the device of this PE.
    #[error("`{argument}` is memory of device {found}, expected memory of device {expected} (the device of this PE)")]
    WrongDevice {
        /// The name of the parameter that is wrong.
        argument: &'static str,
        /// The ordinal of the device that holds the memory.
        found: u32,
        /// The ordinal of the device that the backend uses on this PE.
        expected: u32,
    },
    /// The ticket belongs to an operation that was captured into a graph. Such a ticket never
    /// completes.
    #[error("the operation was captured into a graph: launch the graph, and wait for the stream on which it is launched")]
    Captured,
    /// The closure that was passed to a group call has exchanged its group for the group of another
    /// team, for example with [`std::mem::swap`].
    #[error("the closure exchanged its group for another team's group: add operations only to the group passed to the closure")]
    ForeignGroup,
    /// The stream or event belongs to another world.
    #[error("the {what} belongs to another world")]
    ForeignQueue {
        /// Which kind of handle the caller passed: "stream" or "event".
        what: &'static str,
    },
    /// The team has been destroyed.
    #[error("the team was destroyed")]
    TeamDestroyed,
    /// The call would destroy the team of all PEs. That team cannot be destroyed.
    #[error("the team of all PEs cannot be destroyed: the team ends with the world")]
    WorldTeam,
    /// The call would destroy the team of this machine's PEs. That team cannot be destroyed.
    #[error("the team of the PEs of this machine cannot be destroyed: the team ends with the world")]
    LocalTeam,
    /// The world has been finalized.
    #[error("the world was finalized")]
    Finalized,
    /// The world has been replaced by [`World::shrink`](crate::World::shrink).
    #[error("the world was replaced by World::shrink: use the new world, which World::shrink returned")]
    Shrunk,
    /// The calling process is a child that was forked after the world had been created. A forked
    /// child does not belong to the job.
    #[error("this process is a forked child: only the process that created the world can use the world")]
    Forked,
    /// The reduction is not defined for the element type.
    #[error("the reduction {op} is not defined for elements of type {element}", element = dtype.rust_name())]
    Reduction {
        /// The reduction that the caller passed.
        op: ReduceOp,
        /// The element type for which the reduction is not defined.
        dtype: DType,
    },
    /// The reduction is not defined for the element type. An element of this type consists of
    /// several values.
    #[error("the reduction {op} is not defined for elements of type {element}")]
    ElementReduction {
        /// The reduction that the caller passed.
        op: ReduceOp,
        /// The name of the element type for which the reduction is not defined.
        element: &'static str,
    },
    /// The shape of a new team is empty, contains a rank twice, or contains a rank that the parent
    /// team does not have.
    #[error("the shape is {found}, expected distinct ranks of a team with {team_size} ranks")]
    Shape {
        /// A description of the shape that was passed.
        found: String,
        /// The number of ranks in the parent team.
        team_size: usize,
    },
    /// A parameter has an invalid value.
    #[error("`{argument}` is {found}, expected {expected}")]
    Value {
        /// The name of the parameter that is wrong.
        argument: &'static str,
        /// The value that was passed.
        found: String,
        /// A description of the valid values.
        expected: &'static str,
    },
    /// A required parameter is missing, or a group lacks a required call. For example, the root
    /// passes no buffer, or a premultiplied sum has no scalar. Or a group contains a receive from
    /// this rank itself, but no matching send.
    #[error("`{argument}` is missing: {why}")]
    Missing {
        /// The name of the missing parameter or call.
        argument: &'static str,
        /// The reason why the parameter or call is needed.
        why: &'static str,
    },
}

#[cold]
#[inline(never)]
pub(crate) fn misuse(call: &'static str, kind: MisuseKind) -> Error {
    Error::Misuse(Misuse { call, kind })
}
