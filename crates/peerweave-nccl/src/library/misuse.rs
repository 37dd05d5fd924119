//! Misuse by the caller, detected before NCCL is called.

use std::path::Path;
use std::sync::Arc;

use crate::Rank;
use crate::library::error::{CommunicatorName, Ranks};

/// A misuse by the caller.
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
    /// A number out of range.
    #[error("{what} is {found}, expected {expected}")]
    Value {
        /// Name of the argument or option.
        what: &'static str,
        /// Value of the argument.
        found: i64,
        /// Description of valid values.
        expected: &'static str,
    },
    /// A wrong length.
    #[error("{what} has {found} {unit}, expected {expected}")]
    Length {
        /// Name of the argument.
        what: &'static str,
        /// Length of the argument.
        found: usize,
        /// The expected length.
        expected: usize,
        /// Unit of both lengths, such as elements or bytes.
        unit: &'static str,
    },
    /// An argument that is too short.
    #[error("{what} has {found} {unit}, expected at least {at_least}")]
    TooShort {
        /// Name of the argument.
        what: &'static str,
        /// Length of the argument.
        found: usize,
        /// The minimum length.
        at_least: usize,
        /// Unit of both lengths, such as elements or ranks.
        unit: &'static str,
    },
    /// Invalid text, or a missing argument.
    #[error("{what}: {why}")]
    Text {
        /// Name of the argument or option.
        what: &'static str,
        /// The reason why the value is invalid.
        why: &'static str,
    },
    /// A rank that the communicator does not have.
    #[error("{what} is {}, expected less than {ranks} (the number of ranks)", found.get())]
    Rank {
        /// Name of the argument, such as the root or the peer.
        what: &'static str,
        /// Value of the argument.
        found: Rank,
        /// Number of ranks of the communicator.
        ranks: usize,
    },
    /// Memory or a stream of another device.
    #[error("{what} is on device {found}, expected device {expected}")]
    Device {
        /// Name of the argument.
        what: &'static str,
        /// Device of the argument.
        found: usize,
        /// The expected device.
        expected: usize,
    },
    /// An object that was created for another communicator.
    #[error("{what} belongs to {found}, expected {expected}")]
    WrongCommunicator {
        /// Name of the argument.
        what: &'static str,
        /// The communicator of the argument.
        found: Arc<CommunicatorName>,
        /// The communicator of the call.
        expected: Arc<CommunicatorName>,
    },
    /// An argument that belongs to another loaded libnccl.
    #[error("{what} belongs to the library {}, expected {}", found.display(), expected.display())]
    WrongLibrary {
        /// Name of the argument.
        what: &'static str,
        /// The library of the argument.
        found: Arc<Path>,
        /// The library that was called.
        expected: Arc<Path>,
    },
    /// Options that exclude each other, or an option that requires another option.
    #[error("{what}: {why}")]
    Combination {
        /// Names of the options.
        what: &'static str,
        /// The reason why the options cannot be combined.
        why: &'static str,
    },
    /// Two buffers of a call overlap.
    #[error("{send} and {recv} overlap at {address:#x}; use the in-place form of the call")]
    Overlap {
        /// The argument that is read.
        send: &'static str,
        /// The argument that is written.
        recv: &'static str,
        /// The first shared address.
        address: u64,
    },
    /// Two ranks of one group issue calls that do not match. The calls differ in length, element
    /// type, root or reduction, or are different collectives. No call of the group was issued.
    #[error("{rank} calls {found}, {other} of the same group calls {expected}")]
    Disagreement {
        /// A rank.
        rank: Rank,
        /// The call of that rank.
        found: Box<str>,
        /// The other rank, whose call was recorded earlier.
        other: Rank,
        /// The call of the other rank.
        expected: Box<str>,
    },
    /// A thread waits for a collective that the same thread has not issued for all of its ranks.
    /// The waiting thread created the missing ranks, or was the last thread that used them. The
    /// communicator is aborted, as after a timeout.
    #[error(
        "call {sequence} on {communicator} was issued without {}, which the waiting thread used last; issue the calls of all ranks of a \
         thread in one Nccl::group",
        Ranks(ranks)
    )]
    NotInGroup {
        /// The missing ranks.
        ranks: Vec<Rank>,
        /// Number of the waiting call on its communicator.
        sequence: u64,
        /// The communicator whose call waits.
        communicator: Arc<CommunicatorName>,
    },
    /// Captured graphs use the communicator.
    #[error("captured graphs still use the communicator ({count} captured calls); destroy them first")]
    Graphs {
        /// Number of captured calls whose graphs use the communicator.
        count: usize,
    },
    /// The call is not possible in the current state.
    #[error("{why}")]
    Context {
        /// The reason, and what to do instead.
        why: &'static str,
    },
}
