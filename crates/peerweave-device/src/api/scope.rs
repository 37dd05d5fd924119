//! Scopes: the threads that make a call together. A scope is one thread, a warp, or a block.

use crate::gpu;

mod sealed {
    pub trait Sealed {}
}

/// The three scopes as values. Code that is generic over the scope compares the constant `KIND`
/// with these values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The scope [`Thread`].
    Thread,
    /// The scope [`Warp`].
    Warp,
    /// The scope [`Block`].
    Block,
}

/// The threads that make a call together. All these threads make the call with the same arguments.
///
/// [`Thread`], [`Warp`] and [`Block`] implement this trait. Other crates cannot implement this
/// trait.
pub trait Scope: sealed::Sealed + Copy + 'static {
    /// The kind of this scope as a run-time value: a thread, a warp or a block.
    const KIND: Kind;

    /// Whether the scope is a single thread.
    const ALONE: bool = matches!(Self::KIND, Kind::Thread);

    /// Whether the scope may contain several warps.
    const WIDE: bool = matches!(Self::KIND, Kind::Block);

    /// Returns the index of this thread in the scope.
    fn rank() -> usize;

    /// Returns the number of threads of the scope.
    fn size() -> usize;

    /// Waits until all threads of the scope have called this function. Earlier writes of each
    /// thread are visible to all these threads after the call.
    fn sync();

    /// Waits like [`Self::sync`]. Returns whether `value` was `true` in any thread of the scope.
    fn any(value: bool) -> bool;
}

/// The scope of one thread.
#[derive(Clone, Copy, Debug)]
pub struct Thread;

/// The scope of a warp: 32 threads, or fewer in the last warp of a block.
#[derive(Clone, Copy, Debug)]
pub struct Warp;

/// The scope of a block: all threads of the block.
#[derive(Clone, Copy, Debug)]
pub struct Block;

impl sealed::Sealed for Thread {}
impl sealed::Sealed for Warp {}
impl sealed::Sealed for Block {}

impl Scope for Thread {
    const KIND: Kind = Kind::Thread;

    #[inline(always)]
    fn rank() -> usize {
        0
    }

    #[inline(always)]
    fn size() -> usize {
        1
    }

    #[inline(always)]
    fn sync() {}

    #[inline(always)]
    fn any(value: bool) -> bool {
        value
    }
}

impl Scope for Warp {
    const KIND: Kind = Kind::Warp;

    #[inline(always)]
    fn rank() -> usize {
        gpu::lane() as usize
    }

    #[inline(always)]
    fn size() -> usize {
        gpu::warp_mask().count_ones() as usize
    }

    #[inline(always)]
    fn sync() {
        gpu::sync_warp(gpu::warp_members());
    }

    #[inline(always)]
    fn any(value: bool) -> bool {
        gpu::vote_any(gpu::warp_members(), value)
    }
}

impl Scope for Block {
    const KIND: Kind = Kind::Block;

    #[inline(always)]
    fn rank() -> usize {
        gpu::thread_rank() as usize
    }

    #[inline(always)]
    fn size() -> usize {
        gpu::block_threads() as usize
    }

    #[inline(always)]
    fn sync() {
        gpu::sync_threads();
    }

    #[inline(always)]
    fn any(value: bool) -> bool {
        gpu::sync_threads_or(value)
    }
}
