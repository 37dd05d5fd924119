//! Operations as plain data, and the location of their memory.

mod collective;
mod launch;
mod one_sided;
mod point_to_point;
mod wait;

pub use collective::{Collective, CollectiveKind, CollectiveShape, Combine, Special, VectorCounts};
pub use launch::{BoundKernel, Launch};
pub use one_sided::{Atomic, AtomicKind, Copy, Fill, Get, GetElement, Put, PutElement, Signal, Strided};
pub use point_to_point::{Direction, PointToPoint};
pub use wait::{Until, WaitMode, WaitUntil, WaitValues};

use peerweave_types::SymOffset;
use std::sync::Arc;

/// The location of memory that an operation accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// An offset in this PE's symmetric memory.
    Symmetric(SymOffset),
    /// An address of ordinary memory in this process.
    Private(*mut u8),
    /// Device memory that is not symmetric. The memory belongs to the backend's device
    /// ([`Caps::device`](super::Caps::device)). A backend without a device never gets this variant.
    Device {
        /// The address that kernels and copies on the device use.
        address: u64,
        /// The ordinal of the device in this process.
        ordinal: u32,
    },
}

impl Place {
    /// Returns the place that is `bytes` bytes after this place.
    #[must_use]
    pub fn plus(self, bytes: usize) -> Self {
        match self {
            Self::Symmetric(at) => Self::Symmetric(at.plus(bytes as u64)),
            Self::Private(at) => Self::Private(at.wrapping_add(bytes)),
            Self::Device { address, ordinal } => Self::Device { address: address + bytes as u64, ordinal },
        }
    }
}

// SAFETY: a place is only a number; the memory is accessed under the contract of `submit` and
// `run`, whose callers guarantee that the memory is valid from any thread (buffers in flight are
// held by `Keep`, which is Send + Sync). Shared: nothing mutable. A violation would be caught by:
// tests/streams.rs, which drops buffers while a worker thread still uses them (under
// ThreadSanitizer).
unsafe impl Send for Place {}
// SAFETY: as for Send: a shared place gives no access by itself.
unsafe impl Sync for Place {}

/// One operation, without generics. An operation is plain data: a clone does not copy the memory
/// that the operation accesses.
// `repr(u8)` gives the enum a separate tag, which one instruction reads. Reading a tag that is
// encoded in a field takes five.
#[repr(u8)]
#[derive(Clone, Debug)]
pub enum Op {
    /// A collective, in which all ranks of a team participate.
    Collective(Collective),
    /// A send to one rank, or a receive from one rank.
    PointToPoint(PointToPoint),
    /// A group of operations. The sends and receives in the group run at the same time. The other
    /// operations run in order.
    Group(Arc<Vec<Op>>),
    /// A put of contiguous bytes.
    Put(Put),
    /// A get of contiguous bytes.
    Get(Get),
    /// A put or get of strided elements.
    Strided(Strided),
    /// A put of one element. The operation contains the value of the element.
    PutElement(PutElement),
    /// A get of one element. The outcome is the bits of the element.
    GetElement(GetElement),
    /// A copy between two memory ranges of this PE.
    Copy(Copy),
    /// A fill, which sets elements in memory of this PE to one value.
    Fill(Fill),
    /// An update of a signal word.
    Signal(Signal),
    /// A wait for memory words of this PE: for a signal word, or for integer elements.
    Wait(WaitUntil),
    /// An atomic operation on one element.
    Atomic(Atomic),
    /// A launch of a kernel on a grid of thread blocks.
    Launch(Launch),
    /// A fence, which orders this PE's puts, signals and atomics. If a target sees an operation
    /// that was issued after the fence, the target also sees all operations on this target that
    /// were issued before the fence.
    Fence,
    /// A quiet, which waits until this PE's earlier puts, gets, signals and atomics are complete.
    Quiet,
}

impl Op {
    /// Returns whether the operation may contain a handle to heap memory, such as an `Arc`, and
    /// must therefore be dropped. All other operations contain only plain values, so their
    /// destructor does nothing.
    #[inline(always)]
    pub(crate) fn owns_memory(&self) -> bool {
        match self {
            Self::Collective(op) => op.counts.is_some() || op.special.is_some(),
            Self::Group(_) | Self::Wait(_) | Self::Launch(_) => true,
            Self::PointToPoint(_)
            | Self::Put(_)
            | Self::Get(_)
            | Self::Strided(_)
            | Self::PutElement(_)
            | Self::GetElement(_)
            | Self::Copy(_)
            | Self::Fill(_)
            | Self::Signal(_)
            | Self::Atomic(_)
            | Self::Fence
            | Self::Quiet => false,
        }
    }

    /// Returns the name of the call that creates this operation.
    #[inline]
    pub fn call_name(&self) -> &'static str {
        match self {
            Self::Collective(op) => op.kind.name(),
            Self::PointToPoint(op) => match op.direction {
                Direction::Send => "send",
                Direction::Receive => "recv",
            },
            Self::Group(_) => "group",
            Self::Put(put) if put.signal.is_some() => "put_signal",
            Self::Put(_) => "put",
            Self::Get(_) => "get",
            Self::Strided(op) => match op.direction {
                Direction::Send => "put_strided",
                Direction::Receive => "get_strided",
            },
            Self::PutElement(_) => "p",
            Self::GetElement(_) => "g",
            Self::Copy(_) => "copy",
            Self::Fill(_) => "fill",
            Self::Signal(_) => "signal",
            Self::Wait(wait) => wait.call_name(),
            Self::Atomic(op) => op.kind.call_name(),
            Self::Launch(launch) => launch.kernel.name(),
            Self::Fence => "fence",
            Self::Quiet => "quiet",
        }
    }
}
