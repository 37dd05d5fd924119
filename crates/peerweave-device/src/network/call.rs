//! Calls of the network on the host: the requests to an [`Executor`](crate::arch::Executor) that
//! emulates a network.
//!
//! Addresses are those of the calling PE's own symmetric memory, as for NVSHMEM. Each call
//! guarantees no more than NVSHMEM does: a put is complete at its PE after a [`Call::Quiet`], and
//! ordered with other puts to that PE by a [`Call::Fence`].

use peerweave_types::SignalOp;

/// A change of a signal word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Address of the word.
    pub word: u64,
    /// The value to set or add.
    pub value: u64,
    /// The operation on the word.
    pub op: SignalOp,
}

/// An operation on one word that is atomic with respect to other such operations. Operands are
/// zero-extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Returns the word.
    Fetch,
    /// Writes the operand.
    Set(u64),
    /// Writes the operand. Returns the previous value.
    Swap(u64),
    /// Writes the second operand if the word equals the first one. Returns the previous value.
    CompareSwap(u64, u64),
    /// Adds, wrapping. Returns the previous value.
    FetchAdd(u64),
    /// Combines by bitwise and. Returns the previous value.
    FetchAnd(u64),
    /// Combines by bitwise or. Returns the previous value.
    FetchOr(u64),
    /// Combines by bitwise exclusive or. Returns the previous value.
    FetchXor(u64),
    /// Adds, wrapping.
    Add(u64),
    /// Combines by bitwise and.
    And(u64),
    /// Combines by bitwise or.
    Or(u64),
    /// Combines by bitwise exclusive or.
    Xor(u64),
}

impl Atomic {
    /// Returns whether the operation returns the previous value.
    pub const fn fetches(self) -> bool {
        !matches!(self, Self::Set(_) | Self::Add(_) | Self::And(_) | Self::Or(_) | Self::Xor(_))
    }

    /// Returns the new value of a word. The caller truncates it to the width of the word.
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

/// A call of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Copies memory of the caller to a PE, and then changes a signal word of that PE.
    Put {
        /// Address of the target in the caller's own heap.
        to: u64,
        /// Address of the source: any memory of the caller.
        from: u64,
        /// Length in bytes.
        bytes: usize,
        /// The target PE.
        pe: u32,
        /// Whether the source may still be read after the call, until a [`Self::Quiet`].
        nbi: bool,
        /// The signal after the data.
        signal: Option<Signal>,
    },
    /// Copies memory of a PE to the caller.
    Get {
        /// Address of the target: any memory of the caller.
        to: u64,
        /// Address of the source in the caller's own heap.
        from: u64,
        /// Length in bytes.
        bytes: usize,
        /// The source PE.
        pe: u32,
        /// Whether the data may arrive after the call, until a [`Self::Quiet`].
        nbi: bool,
    },
    /// Changes a word of a PE. Returns the previous value if [`Atomic::fetches`].
    Atomic {
        /// Address of the word in the caller's own heap.
        word: u64,
        /// Size of the word in bytes: 4 or 8.
        bytes: usize,
        /// The operation.
        operation: Atomic,
        /// The PE that has the word.
        pe: u32,
    },
    /// Orders the puts of a PE to each other PE: earlier puts arrive before later ones.
    Fence {
        /// The calling PE.
        me: u32,
    },
    /// Completes all puts and gets of a PE.
    Quiet {
        /// The calling PE.
        me: u32,
    },
}
