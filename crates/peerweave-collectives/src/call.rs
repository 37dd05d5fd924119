//! The argument of every kernel of this crate.

use peerweave_device::prelude::*;

/// Largest number of ranks of a call.
pub const MAX_RANKS: usize = 8;

/// How a collective moves its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Every rank pushes its whole input to every rank.
    OneShot,
    /// Every rank reduces one part and pushes the result to every rank.
    TwoShot,
    /// As [`Self::TwoShot`], in chunks through a ring.
    Chunked,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 3] = [Self::OneShot, Self::TwoShot, Self::Chunked];
}

/// The ranks that get the result of an all_reduce kernel, as [`Call::results`] holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Results {
    /// Every rank.
    Every,
    /// One rank: the kernel is a reduce.
    Root(u32),
    /// Every rank the part that it reduces, where [`Call::recv`] would have it if the rank got the
    /// whole result: the kernel is a reduce_scatter. [`Algorithm::Chunked`] only.
    OwnPart,
}

/// [`Results::Every`] and [`Results::OwnPart`] in a call.
const EVERY: u32 = u32::MAX;
const OWN_PART: u32 = u32::MAX - 1;

impl Results {
    /// The value of [`Call::results`].
    pub const fn code(self) -> u32 {
        match self {
            Self::Every => EVERY,
            Self::Root(rank) => rank,
            Self::OwnPart => OWN_PART,
        }
    }
}

/// One collective call, as its kernel gets it. Addresses are those that this rank's device uses.
///
/// What the ranks must agree on: [`count`](Self::count), [`op`](Self::op),
/// [`sentinel`](Self::sentinel), [`bank_bytes`](Self::bank_bytes),
/// [`max_blocks`](Self::max_blocks), the kernel, and the shape of its
/// launch.
#[derive(Clone, Copy, Debug, KernelArg)]
#[repr(C)]
pub struct Call {
    /// Address of the area of rank `(rank + k) % ranks` at index `k`: its own comes first. Each is
    /// aligned to 128 bytes.
    pub areas: [u64; MAX_RANKS],
    /// The PE of rank `(rank + k) % ranks` at index `k`, for reports.
    pub pes: [u32; MAX_RANKS],
    /// Address of the input, aligned to its elements.
    pub send: u64,
    /// Address of the result, aligned to its elements: the input itself, or memory that does not
    /// overlap it.
    pub recv: u64,
    /// Number of elements of the input; for kernels of parts of one part.
    pub count: u64,
    /// The content of a line that has not arrived.
    pub sentinel: [u64; 2],
    /// Address of the word that counts launches ([`crate::epoch`]); for [`Algorithm::Chunked`] of
    /// one word for each block.
    pub counter: u64,
    /// [`Algorithm::OneShot`] and [`Algorithm::TwoShot`]: length of one of the two banks at the
    /// start of an area. [`Algorithm::Chunked`]: length of one slot of a block's ring, a multiple
    /// of 128.
    pub bank_bytes: u64,
    /// reduce_scatter: bytes from one part of the input to the next.
    pub stride: u64,
    /// The bits of this rank's scalar, zero-extended, for `PreMulSum`.
    pub scalar: u64,
    /// Number of ranks, 1 to [`MAX_RANKS`].
    pub ranks: u32,
    /// This rank.
    pub rank: u32,
    /// The reduction: `ReduceOp as u32`.
    pub op: u32,
    /// Kernels with rings: number of blocks that the areas were made for, at least that of the
    /// launch.
    pub max_blocks: u32,
    /// all_reduce: the ranks that get the result, by [`Results::code`].
    pub results: u32,
    /// [`Algorithm::Chunked`]: 1 if [`recv`](Self::recv) is as far behind the area on every rank as
    /// on this one, in memory that every rank maps. Results then go straight to it. Addresses and
    /// length are whole lines.
    pub is_symmetric: u32,
    /// Messages through rings: 1 if one block pushes and copies what arrives, 0 if a pair of blocks
    /// does so, for each of [`max_blocks`](Self::max_blocks).
    pub is_combined: u32,
    /// 0.
    pub reserved: u32,
}

/// One of the [`MAX_RANKS`] values of an argument of a kernel. All are read, and then one is taken:
/// an index that varies would move the argument to the thread's own memory, and so would a read
/// behind a branch, or a loop that is not unrolled.
#[inline(always)]
pub(crate) fn select<T: Copy>(k: u32, value: impl Fn(usize) -> T) -> T {
    let either = |bit: u32, low: T, high: T| if k & bit == 0 { low } else { high };
    let all: [T; MAX_RANKS] = [value(0), value(1), value(2), value(3), value(4), value(5), value(6), value(7)];
    let low = either(2, either(1, all[0], all[1]), either(1, all[2], all[3]));
    let high = either(2, either(1, all[4], all[5]), either(1, all[6], all[7]));
    either(4, low, high)
}

impl Call {
    /// Begins a kernel: returns when the one before it in the stream has ended. `false` for a call
    /// that no rank makes.
    ///
    /// What it compares lies in every part of the argument, so that the argument is in the cache of
    /// constants when the wait ends.
    #[inline(always)]
    pub(crate) fn begin(&self) -> bool {
        gpu::start_next_kernel();
        let is_call = self.areas[0] != 0 && self.send != 0 && self.counter != 0 && self.op <= ReduceOp::Xor as u32;
        gpu::wait_for_previous_kernel();
        is_call
    }

    /// The PE of the rank `k` places behind this one.
    #[inline(always)]
    pub(crate) fn pe_behind(&self, k: u32) -> u32 {
        select(k, |index| self.pes[index])
    }

    /// The area of the rank `k` places behind this one.
    #[inline(always)]
    pub(crate) fn area_behind(&self, k: u32) -> u64 {
        select(k, |index| self.areas[index])
    }

    /// Returns whether the rank `k` places behind this one gets results that others reduce.
    #[inline(always)]
    pub(crate) fn has_results(&self, k: u32) -> bool {
        self.results == EVERY || self.results == self.rank_behind(k)
    }

    /// Returns whether this rank keeps what it reduces.
    #[inline(always)]
    pub(crate) fn keeps_own(&self) -> bool {
        self.results == OWN_PART || self.has_results(0)
    }

    /// The PE of a rank.
    #[inline(always)]
    pub(crate) fn pe_of(&self, rank: u32) -> u32 {
        let behind = if rank >= self.rank { rank - self.rank } else { rank + self.ranks - self.rank };
        self.pe_behind(behind)
    }

    /// The rank `k` places behind this one; `k` is below the number of ranks.
    #[inline(always)]
    pub(crate) fn rank_behind(&self, k: u32) -> u32 {
        let rank = self.rank + k;
        if rank >= self.ranks { rank - self.ranks } else { rank }
    }
}
