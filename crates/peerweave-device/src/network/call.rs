//! Network calls on the host. A kernel passes each call to an [`Executor`](crate::arch::Executor),
//! which emulates a network.
//!
//! As in NVSHMEM, a symmetric address is the address in the calling PE's own heap. Calls are
//! ordered only as NVSHMEM guarantees. A put is complete at the target PE after a [`Call::Quiet`].
//! A [`Call::Fence`] orders puts to the same PE.

use peerweave_types::SignalOp;

/// A change that a put makes to a signal word on its target PE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Symmetric address of the signal word: the address of the word in the calling PE's own heap.
    /// The put changes the word at the same heap offset on the target PE.
    pub word: u64,
    /// The value to set or add.
    pub value: u64,
    /// Whether the word is set to `value`, or `value` is added to the word.
    pub op: SignalOp,
}

/// An operation on one word. The operations on a word are atomic with respect to each other.
/// Operands are zero-extended to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Returns the value of the word.
    Fetch,
    /// Replaces the word by the operand.
    Set(u64),
    /// Replaces the word by the operand. Returns the previous value.
    Swap(u64),
    /// Replaces the word by the second operand if the word equals the first operand. Returns the
    /// previous value.
    CompareSwap(u64, u64),
    /// Adds the operand to the word; the sum wraps. Returns the previous value.
    FetchAdd(u64),
    /// Replaces the word by the bitwise AND of the word and the operand. Returns the previous
    /// value.
    FetchAnd(u64),
    /// Replaces the word by the bitwise OR of the word and the operand. Returns the previous value.
    FetchOr(u64),
    /// Replaces the word by the bitwise XOR of the word and the operand. Returns the previous
    /// value.
    FetchXor(u64),
    /// Adds the operand to the word; the sum wraps.
    Add(u64),
    /// Replaces the word by the bitwise AND of the word and the operand.
    And(u64),
    /// Replaces the word by the bitwise OR of the word and the operand.
    Or(u64),
    /// Replaces the word by the bitwise XOR of the word and the operand.
    Xor(u64),
}

impl Atomic {
    /// Returns whether the operation returns the previous value of the word.
    pub const fn fetches(self) -> bool {
        !matches!(self, Self::Set(_) | Self::Add(_) | Self::And(_) | Self::Or(_) | Self::Xor(_))
    }

    /// Returns the new value of a word that contains `word` before the operation. The caller
    /// truncates the result to the width of the word.
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

/// A network call that a kernel makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Copies memory of the caller to a PE. If `signal` is given, also changes a signal word on
    /// that PE after the copy.
    Put {
        /// Address in the caller's own heap. The target has the same offset in the heap of `pe`.
        to: u64,
        /// Address of the source, which may be any memory of the caller.
        from: u64,
        /// Number of bytes to copy.
        bytes: usize,
        /// The target PE.
        pe: u32,
        /// Whether the call may return before the executor has read the source. If so, the executor
        /// has read the source after the next [`Self::Quiet`].
        nbi: bool,
        /// The signal that follows the data, if any.
        signal: Option<Signal>,
    },
    /// Copies memory of a PE to the caller.
    Get {
        /// Address of the target, which may be any memory of the caller.
        to: u64,
        /// Address in the caller's own heap. The source has the same offset in the heap of `pe`.
        from: u64,
        /// Number of bytes to copy.
        bytes: usize,
        /// The source PE.
        pe: u32,
        /// Whether the call may return before the data has arrived. If so, the data has arrived
        /// after the next [`Self::Quiet`].
        nbi: bool,
    },
    /// Applies an atomic operation to a word on a PE. If [`Atomic::fetches`] is true for the
    /// operation, the executor returns the previous value of the word.
    Atomic {
        /// Address in the caller's own heap. The word has the same offset in the heap of `pe`.
        word: u64,
        /// Size of the word in bytes: 4 or 8.
        bytes: usize,
        /// The operation on the word.
        operation: Atomic,
        /// The PE whose word is accessed.
        pe: u32,
    },
    /// Orders the puts of the calling PE to each target PE: earlier puts arrive before later puts.
    Fence {
        /// The calling PE.
        me: u32,
    },
    /// Completes all puts and gets of the calling PE.
    Quiet {
        /// The calling PE.
        me: u32,
    },
}
