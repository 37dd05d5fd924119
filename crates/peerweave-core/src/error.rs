//! What can go wrong, sorted by who is at fault: the caller, a peer, time, the machine.
//!
//! No call fails here. A message is a bug report: it names the call, the team, the value that was found and what was expected.

use crate::backend::TeamId;
use peerweave_types::{DType, FailureKind, KernelOp, Pe, ReduceOp};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Any failure of Peerweave.
///
/// `Debug` shows the message too, since that is what a `main` that returns an error, and `unwrap`, show to people.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call is wrong: reading the code mends it. Nothing was enqueued, no peer was told, and the call can be made again.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The PEs of a team called different things. Every PE of the team gets this error; none ran anything, and the team works on.
    #[error(transparent)]
    Mismatch(Box<Mismatch>),
    /// A peer is gone or failed. Its teams can run no further collective.
    #[error("{call} on {team}: {pe} {cause}")]
    Peer {
        /// The call.
        call: &'static str,
        /// The team.
        team: TeamName,
        /// The PE at fault.
        pe: Pe,
        /// What became of it.
        cause: PeerCause,
    },
    /// A deadline expired.
    #[error(transparent)]
    Timeout(Box<Timeout>),
    /// The operation was not run, since one before it in its stream had failed.
    #[error("{call} was not run: an operation before it in the stream failed: {because}")]
    Skipped {
        /// The call.
        call: &'static str,
        /// The failure before it.
        because: Arc<Error>,
    },
    /// A kernel failed: one of its operations, or one of its threads.
    #[error(transparent)]
    Kernel(Box<KernelFailure>),
    /// The symmetric heap, or the machine, has no room.
    #[error("{call}: {requested_bytes} bytes asked for, {available_bytes} available ({what})")]
    OutOfMemory {
        /// The call.
        call: &'static str,
        /// How much was asked for.
        requested_bytes: usize,
        /// How much there is.
        available_bytes: usize,
        /// Of what: the symmetric heap, the machine's memory, team slots.
        what: &'static str,
    },
    /// The backend does not do this.
    #[error("{call}: not supported by the {backend} backend: {why}")]
    Unsupported {
        /// The call.
        call: &'static str,
        /// The backend.
        backend: &'static str,
        /// Why not, and what to do.
        why: &'static str,
    },
    /// The job could not be set up: launcher environment, rendezvous, libraries.
    #[error("{call}: {source}")]
    Setup {
        /// The call.
        call: &'static str,
        /// What went wrong.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The operating system or a vendor library refused something.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// What it said.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// The PEs that this error blames: the peer that died, those that a deadline missed, those that called something else.
    pub fn blamed(&self) -> Vec<Pe> {
        match self {
            Self::Peer { pe, .. } => vec![*pe],
            Self::Timeout(timeout) => timeout.missing.clone(),
            Self::Mismatch(mismatch) => vec![mismatch.pe],
            Self::Skipped { because, .. } => because.blamed(),
            Self::Kernel(failure) => failure.missing.into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// The kind of misuse, where it is one.
    pub fn misuse(&self) -> Option<&MisuseKind> {
        match self {
            Self::Misuse(misuse) => Some(&misuse.kind),
            _ => None,
        }
    }

    /// A failure of the operating system in `call`.
    pub fn system(call: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::System { call, source: Arc::new(source) }
    }

    /// A failure to set up the job in `call`.
    pub fn setup(call: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Setup { call, source: Arc::new(source) }
    }
}

/// A team in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TeamName {
    /// Its number.
    pub id: TeamId,
    /// How many ranks it has.
    pub size: usize,
}

impl fmt::Display for TeamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.id == TeamId::WORLD {
            write!(f, "the world ({} PEs)", self.size)
        } else {
            write!(f, "team {} ({} ranks)", self.id.0, self.size)
        }
    }
}

/// What became of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerCause {
    /// Its process ended, or was killed, without leaving the job.
    Died,
    /// It left the job (finalized or dropped its world) while others still needed it.
    Left,
    /// It reported that its part of this operation failed.
    Failed,
    /// Its memory could not be read.
    Unreachable,
}

impl fmt::Display for PeerCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Died => "died",
            Self::Left => "left the job",
            Self::Failed => "failed in its part of the operation",
            Self::Unreachable => "could not be read",
        })
    }
}

/// A deadline that expired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} on {team}: nothing for {:.3} s; missing: {}", waited.as_secs_f64(), List(missing))]
pub struct Timeout {
    /// The call.
    pub call: &'static str,
    /// The team.
    pub team: TeamName,
    /// How long it waited.
    pub waited: Duration,
    /// The PEs that did not arrive; empty for a wait on a signal word, which anybody could have set.
    pub missing: Vec<Pe>,
}

/// A kernel that failed on this PE.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kernel}: {message}")]
pub struct KernelFailure {
    /// The kernel.
    pub kernel: &'static str,
    /// Why its operation failed; `None` where none did, but a thread panicked, trapped or diverged.
    pub kind: Option<FailureKind>,
    /// The operation that failed.
    pub operation: Option<KernelOp>,
    /// The PE that did not arrive or cannot be reached.
    pub missing: Option<Pe>,
    /// What happened: the operation with what it expected and found, or the block and thread.
    pub message: String,
}

struct List<'a>(&'a [Pe]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nobody in particular");
        }
        for (i, pe) in self.0.iter().enumerate() {
            write!(f, "{}{pe}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// PEs that called different things where all must call the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the calls of {team} differ: this PE called {mine}, {pe} called {theirs}")]
pub struct Mismatch {
    /// The team.
    pub team: TeamName,
    /// A PE whose call differs.
    pub pe: Pe,
    /// What this PE called, with type, reduction, root and count.
    pub mine: String,
    /// What that PE called.
    pub theirs: String,
}

/// A call that is wrong in itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {kind}")]
pub struct Misuse {
    /// The call.
    pub call: &'static str,
    /// What is wrong with it.
    pub kind: MisuseKind,
}

/// What is wrong with a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MisuseKind {
    /// A buffer has the wrong length.
    #[error("`{argument}` has {found} elements, expected {expected}")]
    Length {
        /// The parameter.
        argument: &'static str,
        /// Its length in elements.
        found: usize,
        /// The length that the call needs, in elements.
        expected: usize,
    },
    /// A length is not a multiple of what it must be.
    #[error("`{argument}` has {found} elements, not a multiple of the {divisor} ranks of the team")]
    NotDivisible {
        /// The parameter.
        argument: &'static str,
        /// Its length in elements.
        found: usize,
        /// The size of the team.
        divisor: usize,
    },
    /// A rank is not of the team.
    #[error("`{argument}` is {found}, but the team has {team_size} ranks")]
    Rank {
        /// The parameter.
        argument: &'static str,
        /// The rank.
        found: u32,
        /// The size of the team.
        team_size: usize,
    },
    /// A range does not lie in its buffer.
    #[error("elements {start}..{end} of `{argument}`, which has {len}")]
    Range {
        /// The parameter.
        argument: &'static str,
        /// First element.
        start: usize,
        /// One past the last element.
        end: usize,
        /// Elements that there are.
        len: usize,
    },
    /// A handle to a part of an allocation, where the whole is needed.
    #[error("`{argument}` is elements {start}..{end} of an allocation of {len}, expected a handle to all of it")]
    PartOfAllocation {
        /// The parameter.
        argument: &'static str,
        /// First element.
        start: usize,
        /// One past the last element.
        end: usize,
        /// Elements of the allocation.
        len: usize,
    },
    /// Two buffers share bytes.
    #[error("`{first}` and `{second}` overlap; use the in-place form, or buffers apart")]
    Overlap {
        /// One parameter.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// Things that one call writes share bytes.
    #[error("{what} overlap")]
    OverlapWithin {
        /// Which.
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
    /// A group was swapped, inside of its closure, with that of a call for another team.
    #[error("the group is that of another team")]
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
    /// The world cannot be destroyed as a team.
    #[error("the team of all PEs ends with the world")]
    WorldTeam,
    /// The team of this machine's PEs cannot be destroyed: the world keeps it.
    #[error("the team of this machine's PEs ends with the world")]
    LocalTeam,
    /// The world was finalized.
    #[error("the world was finalized")]
    Finalized,
    /// The process was forked after the world was made; a child has no part in the job.
    #[error("this process is a forked child; only the process that made the world may use it")]
    Forked,
    /// The reduction is not defined for the element type.
    #[error("{op} is not defined for {dtype}")]
    Reduction {
        /// The reduction.
        op: ReduceOp,
        /// The element type.
        dtype: DType,
    },
    /// The shape does not describe ranks of the team.
    #[error("{found} does not fit a team of {team_size} ranks")]
    Shape {
        /// The shape, in words.
        found: String,
        /// The size of the team.
        team_size: usize,
    },
    /// A parameter has a value that it cannot have.
    #[error("`{argument}` is {found}, expected {expected}")]
    Value {
        /// The parameter.
        argument: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
    /// The buffer is missing where this rank needs one.
    #[error("`{argument}` is missing: {why}")]
    Missing {
        /// The parameter.
        argument: &'static str,
        /// Why it is needed.
        why: &'static str,
    },
}

#[cold]
#[inline(never)]
pub(crate) fn misuse(call: &'static str, kind: MisuseKind) -> Error {
    Error::Misuse(Misuse { call, kind })
}
