//! Misuse of the API by the caller. Most misuses are detected before NCCL is called.

use std::path::Path;
use std::sync::Arc;

use crate::Rank;
use crate::library::error::{CommunicatorName, Ranks};

/// A misuse of the API by the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {kind}")]
#[non_exhaustive]
pub struct Misuse {
    /// Name of the call.
    pub call: &'static str,
    /// The kind of misuse.
    pub kind: MisuseKind,
}

/// Kind of misuse, with the value found and the expected value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MisuseKind {
    /// A number is out of range.
    #[error("{what} is {found}, expected {expected}")]
    Value {
        /// Name of the argument or option.
        what: &'static str,
        /// Value of the argument.
        found: i64,
        /// Description of valid values.
        expected: &'static str,
    },
    /// An argument does not have the expected length.
    #[error("{what} has {found} {unit}, expected {expected}")]
    Length {
        /// Name of the argument.
        what: &'static str,
        /// Length of the argument, in the unit that the field `unit` names.
        found: usize,
        /// Expected length of the argument, in the unit that the field `unit` names.
        expected: usize,
        /// Unit of `found` and `expected`, such as elements or bytes.
        unit: &'static str,
    },
    /// An argument is too short.
    #[error("{what} has {found} {unit}, expected at least {at_least}")]
    TooShort {
        /// Name of the argument.
        what: &'static str,
        /// Length of the argument, in the unit that the field `unit` names.
        found: usize,
        /// Minimum length of the argument, in the unit that the field `unit` names.
        at_least: usize,
        /// Unit of `found` and `at_least`, such as elements or ranks.
        unit: &'static str,
    },
    /// A text is invalid, or an argument is missing.
    #[error("{what}: {why}")]
    Text {
        /// Name of the argument or option.
        what: &'static str,
        /// Explains why the text is invalid, or states that the argument is missing.
        why: &'static str,
    },
    /// The communicator does not have the given rank.
    #[error("{what} is {number}, expected less than {ranks} (the number of ranks)", number = found.get())]
    Rank {
        /// Name of the argument, such as the root or the peer.
        what: &'static str,
        /// Value of the argument.
        found: Rank,
        /// Number of ranks in the communicator.
        ranks: usize,
    },
    /// Memory or a stream belongs to a device other than the expected device.
    #[error("{what} is on device {found}, expected device {expected}")]
    Device {
        /// Name of the argument.
        what: &'static str,
        /// Ordinal of the device to which the argument belongs.
        found: usize,
        /// Ordinal of the expected device.
        expected: usize,
    },
    /// An argument was created for a communicator other than the communicator of the call.
    #[error("{what} belongs to {found}, expected {expected}")]
    WrongCommunicator {
        /// Name of the argument.
        what: &'static str,
        /// Name of the communicator to which the argument belongs.
        found: Arc<CommunicatorName>,
        /// Name of the communicator on which the call was made.
        expected: Arc<CommunicatorName>,
    },
    /// An argument belongs to an NCCL library other than the library that the call uses.
    #[error("{what} belongs to the library {file}, expected {wanted}", file = found.display(), wanted = expected.display())]
    WrongLibrary {
        /// Name of the argument.
        what: &'static str,
        /// Path of the library to which the argument belongs.
        found: Arc<Path>,
        /// Path of the library that the call uses.
        expected: Arc<Path>,
    },
    /// Options or arguments cannot be used as given. For example, options exclude each other, or an
    /// option requires another option that is not set.
    #[error("{what}: {why}")]
    Combination {
        /// Name of the wrong option or argument. If options of the same type conflict, the name of
        /// this type.
        what: &'static str,
        /// Explanation of what is wrong.
        why: &'static str,
    },
    /// Two buffers of a call overlap.
    #[error("{send} and {recv} overlap at {address:#x}; use the in-place form of the call")]
    Overlap {
        /// Name of the buffer that the call reads.
        send: &'static str,
        /// Name of the buffer that the call writes.
        recv: &'static str,
        /// The lowest address that is in both buffers.
        address: u64,
    },
    /// Two ranks of one group issue calls that do not match. The calls are different collectives,
    /// or differ in length, element type, root or reduction. No call in the group was issued.
    #[error("{rank} calls {found}, but {other} in the same group calls {expected}")]
    Disagreement {
        /// The rank that issued the call in the field `found`.
        rank: Rank,
        /// Description of the call that the rank `rank` issued.
        found: Box<str>,
        /// The rank that issued the call in the field `expected`.
        other: Rank,
        /// Description of the call that the rank `other` issued.
        expected: Box<str>,
    },
    /// A thread with several ranks waits for a collective that the thread has not issued for all of
    /// its ranks. `ranks` contains the ranks that the thread has omitted. The waiting thread
    /// created these ranks, or was the last thread that used these ranks. The communicator is
    /// aborted, as after a timeout.
    #[error(
        "call {sequence} on {communicator} cannot complete, because the waiting thread has not issued the call for {missing}; issue the \
         calls of all ranks of a thread in one Nccl::group",
        missing = Ranks(ranks)
    )]
    NotInGroup {
        /// The ranks for which the thread has not issued the collective.
        ranks: Vec<Rank>,
        /// Number of the waiting call. Each communicator counts its own calls.
        sequence: u64,
        /// Name of the communicator on which the call waits.
        communicator: Arc<CommunicatorName>,
    },
    /// Captured graphs still use the communicator.
    #[error("captured graphs still use the communicator ({count} captured calls); destroy the graphs first")]
    Graphs {
        /// Number of captured calls on the communicator. Calls in destroyed graphs do not count.
        count: usize,
    },
    /// The call is not possible for a reason that no other variant describes.
    #[error("{why}")]
    Context {
        /// The reason why the call is not possible, and the remedy if there is one.
        why: &'static str,
    },
}
