//! Mistakes of a caller: found before anything reaches NCCL.

use std::path::Path;
use std::sync::Arc;

use crate::Rank;
use crate::library::error::{CommunicatorName, Ranks};

/// A mistake of the caller: which call, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {kind}")]
#[non_exhaustive]
pub struct Misuse {
    /// The call.
    pub call: &'static str,
    /// What is wrong with it.
    pub kind: MisuseKind,
}

/// What is wrong with a call: the value that was found, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MisuseKind {
    /// A number outside of what is allowed.
    #[error("{what} is {found}, expected {expected}")]
    Value {
        /// Which argument or option.
        what: &'static str,
        /// Its value.
        found: i64,
        /// What is allowed.
        expected: &'static str,
    },
    /// Something of the wrong length.
    #[error("{what} has {found} {unit}, expected {expected}")]
    Length {
        /// What.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length that it should have.
        expected: usize,
        /// In what both are counted: elements, bytes.
        unit: &'static str,
    },
    /// Something that is too short.
    #[error("{what} has {found} {unit}, expected at least {at_least}")]
    TooShort {
        /// What.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length that it needs.
        at_least: usize,
        /// In what both are counted: elements, ranks.
        unit: &'static str,
    },
    /// Invalid text, or a missing argument.
    #[error("{what}: {why}")]
    Text {
        /// Which argument or option.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A rank that the communicator does not have.
    #[error("{what} is {}, expected less than {ranks} (the number of ranks)", found.get())]
    Rank {
        /// Which argument: root, peer.
        what: &'static str,
        /// Its value.
        found: Rank,
        /// How many ranks there are.
        ranks: usize,
    },
    /// Memory or a stream of another device.
    #[error("{what} is on device {found}, expected device {expected}")]
    Device {
        /// Which argument.
        what: &'static str,
        /// Where it is.
        found: usize,
        /// Where it should be.
        expected: usize,
    },
    /// An object that was made for another communicator.
    #[error("{what} belongs to {found}, expected {expected}")]
    WrongCommunicator {
        /// Which argument.
        what: &'static str,
        /// The communicator that it belongs to.
        found: Arc<CommunicatorName>,
        /// The communicator that it was used with.
        expected: Arc<CommunicatorName>,
    },
    /// Two libraries named libnccl are loaded, and the argument belongs to the other one.
    #[error("{what} belongs to the library {}, expected {}", found.display(), expected.display())]
    WrongLibrary {
        /// Which argument.
        what: &'static str,
        /// The library that it belongs to.
        found: Arc<Path>,
        /// The library that was called.
        expected: Arc<Path>,
    },
    /// Two options that exclude each other, or one that needs another.
    #[error("{what}: {why}")]
    Combination {
        /// Which options.
        what: &'static str,
        /// What is wrong with them together.
        why: &'static str,
    },
    /// Two buffers of a call share memory.
    #[error("{send} and {recv} overlap at {address:#x}; use the in-place form of the call")]
    Overlap {
        /// The argument that is read.
        send: &'static str,
        /// The argument that is written.
        recv: &'static str,
        /// The first address that both have.
        address: u64,
    },
    /// Two ranks of one group that issue calls which do not match: other lengths, element
    /// types, roots, reductions, or another collective. Nothing of the group was issued.
    #[error("{rank} calls {found}, {other} of the same group calls {expected}")]
    Disagreement {
        /// A rank.
        rank: Rank,
        /// What it calls.
        found: Box<str>,
        /// Another rank, which was recorded earlier.
        other: Rank,
        /// What that one calls.
        expected: Box<str>,
    },
    /// A thread waits for a collective that it has not issued for all of its ranks: it was the last
    /// to use the missing ones, or has created them. The communicator is aborted, as after a
    /// deadline.
    #[error(
        "{} of this process {} not in the group of call {sequence} on {communicator}, and the thread that waits for it was the last to use {}; a thread \
         that has several ranks issues their calls in one Nccl::group",
        Ranks(ranks), if ranks.len() == 1 { "was" } else { "were" }, if ranks.len() == 1 { "that rank" } else { "those ranks" }
    )]
    NotInGroup {
        /// The ranks that are missing.
        ranks: Vec<Rank>,
        /// The number of the call on the communicator that waits.
        sequence: u64,
        /// The communicator that waits.
        communicator: Arc<CommunicatorName>,
    },
    /// Captured graphs use the communicator.
    #[error("captured graphs still use the communicator ({count} captured calls); destroy them first")]
    Graphs {
        /// How many captured calls hold it.
        count: usize,
    },
    /// The call is not possible in this place.
    #[error("{why}")]
    Context {
        /// Why not, and what to do instead.
        why: &'static str,
    },
}
