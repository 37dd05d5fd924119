//! Errors, sorted by cause: the caller, a peer, a deadline, the system.
//!
//! A message names the call, the team, the value that was found and the value that was expected.

use crate::backend::TeamId;
use peerweave_types::{Compare, DType, FailureKind, KernelOp, Pe, ReduceOp, SymOffset};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Any failure of Peerweave.
///
/// `Debug` shows the message too, because `unwrap` and a `main` that returns an error print
/// `Debug`.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A bug in the caller. Nothing was enqueued and no peer was notified, so a corrected call can
    /// follow.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The PEs of a team made different calls. Every PE of the team gets this error, no PE ran
    /// anything, and the team stays usable.
    #[error(transparent)]
    Mismatch(Box<Mismatch>),
    /// A peer has died, left the job, failed, or cannot be accessed. Teams that contain the peer
    /// can run no further collectives.
    #[error("{call} on {team}: {pe} {cause}")]
    Peer {
        /// The call.
        call: &'static str,
        /// The team.
        team: TeamName,
        /// The peer.
        pe: Pe,
        /// The event that affected the peer.
        cause: PeerCause,
    },
    /// A deadline expired.
    #[error(transparent)]
    Timeout(Box<Timeout>),
    /// The operation did not run, because an earlier operation in its stream had failed with an
    /// error other than [`Mismatch`].
    #[error("{call} was skipped: an earlier operation of the stream failed: {because}")]
    Skipped {
        /// The call.
        call: &'static str,
        /// The earlier failure.
        because: Arc<Error>,
    },
    /// The operation did not run, because its team failed earlier. The ranks of the team may be at
    /// different operations.
    #[error("{call}: {team} is poisoned by an earlier failure: {because}")]
    Poisoned {
        /// The call.
        call: &'static str,
        /// The team.
        team: TeamName,
        /// The earlier failure.
        because: Arc<Error>,
    },
    /// A PE has ended the job by [`World::abort`](crate::World::abort). All later calls on all PEs
    /// fail with this error.
    #[error("{by} has aborted the job with exit code {code}")]
    Aborted {
        /// The PE that aborted the job first.
        by: Pe,
        /// The exit code that this PE passed.
        code: u8,
    },
    /// A kernel failed, in one of its operations or threads.
    #[error(transparent)]
    Kernel(Box<KernelFailure>),
    /// The symmetric heap or the machine does not have enough memory.
    #[error("{call}: out of memory: {requested_bytes} bytes requested, {available_bytes} available ({what})")]
    OutOfMemory {
        /// The call.
        call: &'static str,
        /// The bytes requested.
        requested_bytes: usize,
        /// The bytes available.
        available_bytes: usize,
        /// The resource: the symmetric heap, memory of the machine.
        what: &'static str,
    },
    /// A PE already belongs to the maximum number of teams. Every rank of the parent team gets this
    /// error.
    #[error("{call}: a PE already belongs to {max_teams} teams, the maximum: destroy one first")]
    TooManyTeams {
        /// The call.
        call: &'static str,
        /// The number of teams that a PE can belong to at the same time, including the world.
        max_teams: usize,
    },
    /// The backend does not support the call.
    #[error("{call}: not supported by the {backend} backend: {why}")]
    Unsupported {
        /// The call.
        call: &'static str,
        /// The backend.
        backend: &'static str,
        /// The reason, and an alternative.
        why: &'static str,
    },
    /// The job could not start: wrong launcher environment, failed rendezvous, missing library.
    #[error("{call}: {source}")]
    Setup {
        /// The call.
        call: &'static str,
        /// The cause.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A call of the operating system or of a vendor library failed.
    #[error("{call}: {source}")]
    System {
        /// The call.
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
    /// Returns the PEs of the job that caused the error: the peer that died, PEs that missed a
    /// deadline, PEs that made a different call.
    pub fn blamed(&self) -> Vec<Pe> {
        match self {
            Self::Peer { pe, .. } => vec![*pe],
            Self::Timeout(timeout) => timeout.missing.clone(),
            Self::Mismatch(mismatch) => vec![mismatch.pe],
            Self::Skipped { because, .. } | Self::Poisoned { because, .. } => because.blamed(),
            // The kernel has named a PE that the job does not have.
            Self::Kernel(failure) if failure.kind == Some(FailureKind::NoSuchPeer) => Vec::new(),
            Self::Kernel(failure) => failure.missing.into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Converts an error of the setup of a new job to an error of `call` on `team` of the old job.
    /// `old` converts PE numbers of the new job to those of the old job. For backends.
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

    /// Returns the kind of misuse; `None` for other errors.
    pub fn misuse(&self) -> Option<&MisuseKind> {
        match self {
            Self::Misuse(misuse) => Some(&misuse.kind),
            _ => None,
        }
    }

    /// Returns the error for a failure of the operating system in `call`.
    pub fn system(call: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::System { call, source: Arc::new(source) }
    }

    /// Returns the error for a failure to start the job in `call`.
    pub fn setup(call: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Setup { call, source: Arc::new(source) }
    }
}

/// Identifies a team in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TeamName {
    /// The number of the team.
    pub id: TeamId,
    /// The number of its ranks.
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

/// Formats a count with a noun, which gets an "s" unless the count is 1.
pub(crate) struct Count(pub(crate) usize, pub(crate) &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

/// An event that affected a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerCause {
    /// The PE's process ended, or was killed, without leaving the job.
    Died,
    /// The PE left the job (finalized or dropped its world) while other PEs still needed it.
    Left,
    /// The PE reported that it failed in this operation.
    Failed,
    /// The memory of the PE could not be read.
    Unreachable,
    /// The PE has called [`World::shrink`](crate::World::shrink), and runs no more operations of
    /// this world.
    Shrinks,
}

impl fmt::Display for PeerCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Died => "died",
            Self::Left => "left the job",
            Self::Failed => "failed in the operation",
            Self::Unreachable => "has memory that could not be read",
            Self::Shrinks => "has called shrink, and runs no more operations of this world",
        })
    }
}

/// A deadline that expired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} on {team}: timed out after {:.3} s; {}", waited.as_secs_f64(), Awaited { running: *running, missing, holder: *holder, word: *word })]
pub struct Timeout {
    /// The call.
    pub call: &'static str,
    /// The team.
    pub team: TeamName,
    /// The time waited.
    pub waited: Duration,
    /// The PEs that did not arrive; empty for a wait on a signal word, which any PE could have set.
    pub missing: Vec<Pe>,
    /// The call that a stream of this PE is still running, if the wait was for the streams of this
    /// PE.
    pub running: Option<&'static str>,
    /// The PE that holds the lock, if the wait was for a lock. The holder is in `missing` too,
    /// unless it is this PE.
    pub holder: Option<Pe>,
    /// The word for which the call waited, if it waited for words and the backend knows their
    /// values.
    pub word: Option<AwaitedWord>,
}

impl Timeout {
    /// Creates the error of a call that waited for `missing`, and neither for a stream, nor for a
    /// lock, nor for words.
    pub fn new(call: &'static str, team: TeamName, waited: Duration, missing: Vec<Pe>) -> Self {
        Self { call, team, waited, missing, running: None, holder: None, word: None }
    }
}

impl From<Timeout> for Error {
    fn from(timeout: Timeout) -> Self {
        Self::Timeout(Box::new(timeout))
    }
}

/// A word that did not satisfy the comparison of a wait when the deadline passed: the first such
/// word, if there are several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitedWord {
    /// The index among the words of the wait; `None` if the wait is for one word.
    pub index: Option<usize>,
    /// The offset in the symmetric heap.
    pub offset: SymOffset,
    /// The type of the word: an integer.
    pub dtype: DType,
    /// The bits of the word, zero-extended.
    pub found: u64,
    /// The comparison.
    pub compare: Compare,
    /// The bits of the value with which the word is compared, zero-extended.
    pub value: u64,
}

impl fmt::Display for AwaitedWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "word {index} (symmetric offset {})", self.offset.0)?,
            None => write!(f, "the word at symmetric offset {}", self.offset.0)?,
        }
        let sign = Compare::sign_bit(self.dtype);
        let number = |bits: u64| i128::from(bits & !sign) - i128::from(bits & sign);
        write!(f, ": found {}, expected {} {}", number(self.found), self.compare, number(self.value))
    }
}

/// Formats what a wait waited for: a call, a word or PEs.
struct Awaited<'a> {
    running: Option<&'static str>,
    missing: &'a [Pe],
    holder: Option<Pe>,
    word: Option<AwaitedWord>,
}

impl fmt::Display for Awaited<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(call) = self.running {
            write!(f, "a stream of this PE still runs {call}")?;
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
    /// The kernel.
    pub kernel: &'static str,
    /// The kind of failure of an operation; `None` if a thread panicked, trapped or diverged
    /// instead.
    pub kind: Option<FailureKind>,
    /// The operation that failed.
    pub operation: Option<KernelOp>,
    /// The PE that did not arrive or cannot be reached; for [`FailureKind::NoSuchPeer`] the PE that
    /// the job does not have.
    pub missing: Option<Pe>,
    /// The code that the kernel passed to `Context::exit`, if it called it.
    pub exit_code: Option<u64>,
    /// A description: the operation with the value expected and found, or the block and thread.
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

/// PEs of a team made different calls, but all must make the same call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the calls of {team} differ: this PE called {mine}, {pe} called {theirs}")]
pub struct Mismatch {
    /// The team.
    pub team: TeamName,
    /// A PE whose call differs.
    pub pe: Pe,
    /// The call of this PE, with type, reduction, root and count.
    pub mine: String,
    /// The call of that PE.
    pub theirs: String,
}

/// An incorrect call: a bug in the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {kind}")]
pub struct Misuse {
    /// The call.
    pub call: &'static str,
    /// The error in the call.
    pub kind: MisuseKind,
}

/// The error in a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MisuseKind {
    /// A buffer has the wrong length.
    #[error("`{argument}` has {found} elements, expected {expected}")]
    Length {
        /// The parameter.
        argument: &'static str,
        /// The length of the argument, in elements.
        found: usize,
        /// The length that the call needs, in elements.
        expected: usize,
    },
    /// A length is not a multiple of the size of the team.
    #[error("`{argument}` has {found} elements, expected a multiple of {divisor} (the ranks of the team)")]
    NotDivisible {
        /// The parameter.
        argument: &'static str,
        /// The length of the argument, in elements.
        found: usize,
        /// The size of the team.
        divisor: usize,
    },
    /// The team does not have the rank.
    #[error("`{argument}` is {found}, expected a rank below {team_size} (the ranks of the team)")]
    Rank {
        /// The parameter.
        argument: &'static str,
        /// The rank.
        found: u32,
        /// The size of the team.
        team_size: usize,
    },
    /// A range exceeds its buffer.
    #[error("`{argument}` has {len} elements, but the call uses {start}..{end}")]
    Range {
        /// The parameter.
        argument: &'static str,
        /// First element.
        start: usize,
        /// One past the last element.
        end: usize,
        /// The length of the buffer, in elements.
        len: usize,
    },
    /// The buffer has no such element.
    #[error("`{argument}` is {found}, expected an index below {len}")]
    Index {
        /// The parameter.
        argument: &'static str,
        /// The index.
        found: usize,
        /// The length of the buffer, in elements.
        len: usize,
    },
    /// A range ends before it starts.
    #[error("`{argument}` is {start}..{end}, which ends before it starts")]
    ReversedRange {
        /// The parameter.
        argument: &'static str,
        /// First element.
        start: usize,
        /// One past the last element.
        end: usize,
    },
    /// A parameter exceeds a limit of the backend.
    #[error("`{argument}` is {found}, expected at most {max} ({limit})")]
    Limit {
        /// The parameter.
        argument: &'static str,
        /// The value of the parameter.
        found: usize,
        /// The largest valid value.
        max: usize,
        /// The name of the limit.
        limit: &'static str,
    },
    /// The handle names a part of an allocation, but the call needs all of it.
    #[error("`{argument}` is elements {start}..{end} of an allocation of {len}, expected a handle to all of it")]
    PartOfAllocation {
        /// The parameter.
        argument: &'static str,
        /// First element.
        start: usize,
        /// One past the last element.
        end: usize,
        /// The length of the allocation, in elements.
        len: usize,
    },
    /// Two buffers share bytes.
    #[error("`{first}` and `{second}` overlap: {advice}")]
    Overlap {
        /// One parameter.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// The buffers or the form to use instead.
        advice: &'static str,
    },
    /// Parts that one call writes share bytes.
    #[error("{what} overlap")]
    OverlapWithin {
        /// The parts that overlap.
        what: &'static str,
    },
    /// The buffer was released.
    #[error("`{argument}` was released")]
    Released {
        /// The parameter.
        argument: &'static str,
    },
    /// The buffer belongs to another world.
    #[error("`{argument}` belongs to another world")]
    ForeignBuffer {
        /// The parameter.
        argument: &'static str,
    },
    /// The memory does not belong to the device of this PE.
    #[error("`{argument}` is memory of device {found}, expected memory of device {expected} (the device of this PE)")]
    WrongDevice {
        /// The parameter.
        argument: &'static str,
        /// The device of the memory.
        found: u32,
        /// The device of the backend.
        expected: u32,
    },
    /// The operation was captured into a graph, so that its ticket never completes.
    #[error("the operation was captured into a graph: launch the graph, and wait for the stream of that launch")]
    Captured,
    /// The closure of a group replaced its group by the group of another team.
    #[error("the group belongs to another team")]
    ForeignGroup,
    /// The stream or event belongs to another world.
    #[error("the {what} belongs to another world")]
    ForeignQueue {
        /// "stream" or "event".
        what: &'static str,
    },
    /// The team was destroyed.
    #[error("the team was destroyed")]
    TeamDestroyed,
    /// The team of all PEs cannot be destroyed.
    #[error("the team of all PEs cannot be destroyed: it ends with the world")]
    WorldTeam,
    /// The team of the PEs of this machine cannot be destroyed.
    #[error("the team of the PEs of this machine cannot be destroyed: it ends with the world")]
    LocalTeam,
    /// The world was finalized.
    #[error("the world was finalized")]
    Finalized,
    /// The world was replaced by [`World::shrink`](crate::World::shrink).
    #[error("the world was replaced by World::shrink: use the world that it returned")]
    Shrunk,
    /// The process is a child that was forked after the world was created, and does not belong to
    /// the job.
    #[error("this process is a forked child: only the process that created the world can use it")]
    Forked,
    /// The reduction is not defined for the element type.
    #[error("{op} is not defined for {}", dtype.rust_name())]
    Reduction {
        /// The reduction.
        op: ReduceOp,
        /// The element type.
        dtype: DType,
    },
    /// The reduction is not defined for the element type, which consists of several values.
    #[error("{op} is not defined for {element}")]
    ElementReduction {
        /// The reduction.
        op: ReduceOp,
        /// The name of the element type.
        element: &'static str,
    },
    /// The shape does not describe ranks of the team.
    #[error("the shape is {found}, expected distinct ranks of a team of {team_size}")]
    Shape {
        /// A description of the shape.
        found: String,
        /// The size of the team.
        team_size: usize,
    },
    /// A parameter has an invalid value.
    #[error("`{argument}` is {found}, expected {expected}")]
    Value {
        /// The parameter.
        argument: &'static str,
        /// The value of the parameter.
        found: String,
        /// The valid values.
        expected: &'static str,
    },
    /// The rank must pass a buffer, but passed none.
    #[error("`{argument}` is missing: {why}")]
    Missing {
        /// The parameter.
        argument: &'static str,
        /// The reason why the buffer is needed.
        why: &'static str,
    },
}

#[cold]
#[inline(never)]
pub(crate) fn misuse(call: &'static str, kind: MisuseKind) -> Error {
    Error::Misuse(Misuse { call, kind })
}
