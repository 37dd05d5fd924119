//! Calls of the network as the host carries them out: what an
//! [`Executor`](crate::arch::Executor) that emulates a network is asked to do.
//!
//! Addresses are those of the calling PE's own symmetric memory, as NVSHMEM takes them. What is
//! promised of each call is no more than NVSHMEM promises: a put is complete at its PE after a
//! [`Call::Quiet`], and in order with other puts to that PE after a [`Call::Fence`].

use peerweave_types::SignalOp;

/// The change of a signal word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Address of the word.
    pub word: u64,
    /// The value that is set or added.
    pub value: u64,
    /// How it is changed.
    pub op: SignalOp,
}

/// An operation on one word that is atomic with respect to other such operations. Operands are
/// extended with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Reads.
    Fetch,
    /// Writes the operand.
    Set(u64),
    /// Writes the operand and returns what was there.
    Swap(u64),
    /// Writes the second operand where the first one is found; returns what was there.
    CompareSwap(u64, u64),
    /// Adds, wrapping, and returns what was there.
    FetchAdd(u64),
    /// Bitwise and; returns what was there.
    FetchAnd(u64),
    /// Bitwise or; returns what was there.
    FetchOr(u64),
    /// Bitwise exclusive or; returns what was there.
    FetchXor(u64),
    /// Adds, wrapping.
    Add(u64),
    /// Bitwise and.
    And(u64),
    /// Bitwise or.
    Or(u64),
    /// Bitwise exclusive or.
    Xor(u64),
}

impl Atomic {
    /// Returns whether the caller waits for what was there.
    pub const fn fetches(self) -> bool {
        !matches!(self, Self::Set(_) | Self::Add(_) | Self::And(_) | Self::Or(_) | Self::Xor(_))
    }

    /// What a word becomes. The caller truncates it to the width of the word.
    pub const fn apply(self, word: u64) -> u64 {
        match self {
            Self::Fetch => word,
            Self::Set(value) | Self::Swap(value) => value,
            Self::CompareSwap(current, new) => {
                if word == current {
                    new
                } else {
                    word
                }
            }
            Self::FetchAdd(value) | Self::Add(value) => word.wrapping_add(value),
            Self::FetchAnd(value) | Self::And(value) => word & value,
            Self::FetchOr(value) | Self::Or(value) => word | value,
            Self::FetchXor(value) | Self::Xor(value) => word ^ value,
        }
    }
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Copies memory of the caller to a PE, and then changes a signal word there.
    Put {
        /// Address of the target, as the caller's own.
        to: u64,
        /// Address of the source: any memory of the caller.
        from: u64,
        /// Length.
        bytes: usize,
        /// The PE.
        pe: u32,
        /// Whether the source may be read after the call has returned, until a [`Self::Quiet`].
        nbi: bool,
        /// The signal that follows the data.
        signal: Option<Signal>,
    },
    /// Copies memory of a PE to the caller.
    Get {
        /// Address of the target: any memory of the caller.
        to: u64,
        /// Address of the source, as the caller's own.
        from: u64,
        /// Length.
        bytes: usize,
        /// The PE.
        pe: u32,
        /// Whether the data may arrive after the call has returned, until a [`Self::Quiet`].
        nbi: bool,
    },
    /// Changes a word of a PE, and returns what was there if [`Atomic::fetches`].
    Atomic {
        /// Address of the word, as the caller's own.
        word: u64,
        /// Bytes of the word: 4 or 8.
        bytes: usize,
        /// What is done.
        operation: Atomic,
        /// The PE.
        pe: u32,
    },
    /// Orders the puts of a PE to each other PE: those before are there before those after.
    Fence {
        /// The PE that calls.
        me: u32,
    },
    /// Completes all puts and gets of a PE.
    Quiet {
        /// The PE that calls.
        me: u32,
    },
}
