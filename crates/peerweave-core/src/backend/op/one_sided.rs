//! One-sided operations as plain data: puts, gets, copies, fills, signals and atomic operations.

use super::{Direction, Place};
use peerweave_types::{DType, Pe, SignalOp, SymOffset};

/// A put of `bytes` bytes from `source` on this PE to `target` on `pe`. If `signal` is set, the put
/// then updates a signal word on `pe`.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// The target PE.
    pub pe: Pe,
    /// The offset of the target in the symmetric memory of `pe`.
    pub target: SymOffset,
    /// The memory that is read on this PE.
    pub source: Place,
    /// The number of bytes.
    pub bytes: usize,
    /// The size of an element, in bytes.
    pub element_bytes: usize,
    /// The update of a signal word on `pe`: the word's offset, the value and the operation. The
    /// word changes after the data is visible on `pe`.
    pub signal: Option<(SymOffset, u64, SignalOp)>,
    /// Whether the put is non-blocking. A non-blocking put may complete as late as the next quiet.
    pub nbi: bool,
}

/// A get of `bytes` bytes from `source` on `pe` to `target` on this PE.
#[derive(Clone, Copy, Debug)]
pub struct Get {
    /// The PE whose memory is read.
    pub pe: Pe,
    /// The offset of the source in the symmetric memory of `pe`.
    pub source: SymOffset,
    /// The memory that is written on this PE.
    pub target: Place,
    /// The number of bytes.
    pub bytes: usize,
    /// The size of an element, in bytes.
    pub element_bytes: usize,
    /// Whether the get is non-blocking. A non-blocking get may complete as late as the next quiet.
    pub nbi: bool,
}

/// A put ([`Direction::Send`]) or get ([`Direction::Receive`]) of `count` strided elements. The
/// strides are in elements.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names of the fields need no explanation")]
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

/// A put of one element. The operation contains the element's value, so the operation reads no
/// memory that must be kept alive.
#[derive(Clone, Copy, Debug)]
pub struct PutElement {
    /// The target PE.
    pub pe: Pe,
    /// The offset of the element in the symmetric memory of `pe`, a multiple of the element's size.
    pub target: SymOffset,
    /// The value of the element: the first `element_bytes` bytes of this integer in native byte
    /// order.
    pub bits: u64,
    /// The size of an element, in bytes: 1, 2, 4 or 8.
    pub element_bytes: usize,
}

/// A get of one element. The outcome is an [`Outcome::Word`](crate::backend::Outcome::Word). The
/// element is the first `element_bytes` bytes of that word in native byte order.
#[derive(Clone, Copy, Debug)]
pub struct GetElement {
    /// The PE whose memory is read.
    pub pe: Pe,
    /// The offset of the element in the symmetric memory of `pe`, a multiple of the element's size.
    pub source: SymOffset,
    /// The size of an element, in bytes: 1, 2, 4 or 8.
    pub element_bytes: usize,
}

/// A copy of `bytes` bytes between two memory ranges on this PE. The two ranges do not overlap.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names of the fields need no explanation")]
pub struct Copy {
    pub source: Place,
    pub target: Place,
    pub bytes: usize,
}

/// A fill, which sets `count` elements in memory of this PE to one value.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// The location of the first element.
    pub target: Place,
    /// The value of each element: the first `element_bytes` bytes of this integer in native byte
    /// order.
    pub bits: u64,
    /// The size of an element, in bytes: 1, 2, 4 or 8.
    pub element_bytes: usize,
    /// The number of elements.
    pub count: usize,
}

/// An update of one signal word.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names of the fields need no explanation")]
pub struct Signal {
    pub pe: Pe,
    pub at: SymOffset,
    pub value: u64,
    pub op: SignalOp,
}

/// An atomic operation on one element in a PE's symmetric memory.
#[derive(Clone, Copy, Debug)]
pub struct Atomic {
    /// The PE whose symmetric memory is accessed.
    pub pe: Pe,
    /// The offset of the element, a multiple of the element's size.
    pub at: SymOffset,
    /// The element type: `I32`, `U32`, `I64` or `U64`; for fetch, set and swap also `F32` or `F64`.
    pub dtype: DType,
    /// The kind of operation.
    pub kind: AtomicKind,
    /// The bits of the operand; 0 if the operation has no operand.
    pub operand: u64,
    /// The bits with which a compare-swap compares the old value; 0 for other kinds.
    pub compare: u64,
}

/// The kind of an atomic operation. `Fetch`, `Swap`, `CompareSwap` and the `Fetch…` kinds return
/// the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants have the names of OpenSHMEM's atomic operations")]
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
