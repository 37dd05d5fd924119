//! Operations on the memory of one PE: puts, gets, copies, signals and atomic operations.

use super::{Direction, Place};
use peerweave_types::{DType, Pe, SignalOp, SymOffset};

/// A put of `bytes` bytes from `source` on this PE to `target` on `pe`, followed by its signal.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// The target PE.
    pub pe: Pe,
    /// The offset in the segment of that PE.
    pub target: SymOffset,
    /// The source.
    pub source: Place,
    /// The number of bytes.
    pub bytes: usize,
    /// Element size, in bytes.
    pub element_bytes: usize,
    /// A signal word that changes at the target after the data is visible there.
    pub signal: Option<(SymOffset, u64, SignalOp)>,
    /// Whether the operation may complete as late as the next quiet.
    pub nbi: bool,
}

/// A get of `bytes` bytes from `source` on `pe` to `target` on this PE.
#[derive(Clone, Copy, Debug)]
pub struct Get {
    /// The PE that is read.
    pub pe: Pe,
    /// The offset in the segment of that PE.
    pub source: SymOffset,
    /// The target.
    pub target: Place,
    /// The number of bytes.
    pub bytes: usize,
    /// Element size, in bytes.
    pub element_bytes: usize,
    /// Whether the operation may complete as late as the next quiet.
    pub nbi: bool,
}

/// A put (`Send`) or get (`Receive`) of `count` elements. Strides are in elements.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Strided {
    pub direction: Direction,
    pub pe: Pe,
    pub remote: SymOffset,
    pub remote_stride: usize,
    pub local: Place,
    pub local_stride: usize,
    pub element_bytes: usize,
    pub count: usize,
}

/// A put of one element. The operation contains the value, so no memory must be kept alive for it.
#[derive(Clone, Copy, Debug)]
pub struct PutElement {
    /// The target PE.
    pub pe: Pe,
    /// The offset in the segment of that PE, aligned to the element.
    pub target: SymOffset,
    /// The bits: the element is the first `element_bytes` bytes of this word in memory.
    pub bits: u64,
    /// Element size, in bytes: 1, 2, 4 or 8.
    pub element_bytes: usize,
}

/// A get of one element. The outcome is an [`Outcome::Word`](crate::backend::Outcome::Word) whose
/// first bytes in memory are the element.
#[derive(Clone, Copy, Debug)]
pub struct GetElement {
    /// The PE that is read.
    pub pe: Pe,
    /// The offset in the segment of that PE, aligned to the element.
    pub source: SymOffset,
    /// Element size, in bytes: 1, 2, 4 or 8.
    pub element_bytes: usize,
}

/// A copy of `bytes` bytes between two memory ranges of this PE that do not overlap.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Copy {
    pub source: Place,
    pub target: Place,
    pub bytes: usize,
}

/// Sets `count` elements of this PE to one value.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// The first element.
    pub target: Place,
    /// The bits: the element is the first `element_bytes` bytes of this word in memory.
    pub bits: u64,
    /// Element size, in bytes: 1, 2, 4 or 8.
    pub element_bytes: usize,
    /// The number of elements.
    pub count: usize,
}

/// An update of one signal word.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Signal {
    pub pe: Pe,
    pub at: SymOffset,
    pub value: u64,
    pub op: SignalOp,
}

/// An atomic operation on one element of a PE's symmetric memory.
#[derive(Clone, Copy, Debug)]
pub struct Atomic {
    /// The PE that owns the element.
    pub pe: Pe,
    /// The offset, aligned to the element.
    pub at: SymOffset,
    /// Element type: I32, U32, I64, U64; F32 and F64 for fetch, set and swap.
    pub dtype: DType,
    /// The kind of operation.
    pub kind: AtomicKind,
    /// The bits of the operand; 0 if there is none.
    pub operand: u64,
    /// The bits that compare-swap expects.
    pub compare: u64,
}

/// The atomic operations. `Fetch`, `Swap`, `CompareSwap` and the `Fetch…` operations return the old
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are OpenSHMEM's")]
pub enum AtomicKind {
    Fetch,
    Set,
    Swap,
    CompareSwap,
    Add,
    FetchAdd,
    Inc,
    FetchInc,
    And,
    FetchAnd,
    Or,
    FetchOr,
    Xor,
    FetchXor,
}

impl AtomicKind {
    /// Returns the name of the call that performs the atomic operation.
    pub const fn call_name(self) -> &'static str {
        match self {
            Self::Fetch => "atomic_fetch",
            Self::Set => "atomic_set",
            Self::Swap => "atomic_swap",
            Self::CompareSwap => "atomic_compare_swap",
            Self::Add => "atomic_add",
            Self::FetchAdd => "atomic_fetch_add",
            Self::Inc => "atomic_inc",
            Self::FetchInc => "atomic_fetch_inc",
            Self::And => "atomic_and",
            Self::FetchAnd => "atomic_fetch_and",
            Self::Or => "atomic_or",
            Self::FetchOr => "atomic_fetch_or",
            Self::Xor => "atomic_xor",
            Self::FetchXor => "atomic_fetch_xor",
        }
    }
}
