//! [`Call`], the argument of the collective kernels of this crate.

use peerweave_device::prelude::*;

/// Maximum number of ranks in a call.
pub const MAX_RANKS: usize = 8;

/// The algorithm by which an all_reduce moves its data between the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Every rank pushes its whole input to every rank, and reduces all inputs itself.
    OneShot,
    /// Every rank reduces one part of the inputs, and pushes the reduced part to every rank.
    TwoShot,
    /// Like [`Self::TwoShot`], but each block pushes its data in chunks through a ring of slots.
    Chunked,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 3] = [Self::OneShot, Self::TwoShot, Self::Chunked];
}

/// The ranks that get the result of an all_reduce kernel, for [`Call::results`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Results {
    /// Every rank gets the result.
    Every,
    /// Only the rank with this number gets the result: the kernel carries out a reduce.
    Root(u32),
    /// Each rank gets only the part that it reduces: the kernel carries out a reduce_scatter. The
    /// kernel writes the part at the same offset from [`Call::recv`] as in a whole result. Valid
    /// only for [`Algorithm::Chunked`].
    OwnPart,
}

/// The number that represents [`Results::Every`] in [`Call::results`].
const EVERY: u32 = u32::MAX;
const OWN_PART: u32 = u32::MAX - 1;

impl Results {
    /// Returns the number that represents this value in [`Call::results`].
    pub const fn code(self) -> u32 {
        match self {
            Self::Every => EVERY,
            Self::Root(rank) => rank,
            Self::OwnPart => OWN_PART,
        }
    }
}

/// The argument of a collective kernel: the staging areas, the operands and the reduction of one
/// collective call. All addresses are valid on this rank's device.
///
/// These values must be the same on all ranks: [`count`](Self::count), [`op`](Self::op),
/// [`sentinel`](Self::sentinel), [`bank_bytes`](Self::bank_bytes),
/// [`max_blocks`](Self::max_blocks), [`ranks`](Self::ranks), [`results`](Self::results), the
/// algorithm and the element type of the kernel, and the shape of its launch.
#[derive(Clone, Copy, Debug, KernelArg)]
#[repr(C)]
pub struct Call {
    /// For each rank, the address of its staging area: memory to which the other ranks push their
    /// data. Aligned to 128 bytes. Index `k` belongs to rank `(rank + k) % ranks`, so this rank's
    /// own area is first.
    pub areas: [u64; MAX_RANKS],
    /// For each rank, the number of its PE. Failure reports contain this number. Index `k` belongs
    /// to rank `(rank + k) % ranks`.
    pub pes: [u32; MAX_RANKS],
    /// Address of the input, aligned to the size of an element.
    pub send: u64,
    /// Address of the result, aligned to the size of an element. The result must be the input
    /// itself, or must not overlap the input.
    pub recv: u64,
    /// Number of elements in the input. For the kernels of
    /// [`reduce_scatter`](crate::reduce_scatter): number of elements in one part. For the kernels
    /// of [`exchange`](crate::exchange): number of bytes in one part.
    pub count: u64,
    /// The sentinel: the 16 bytes that a line of a staging area holds until the data of the line
    /// has arrived.
    pub sentinel: [u64; 2],
    /// Address of the word that counts launches ([`crate::epoch`]). For [`Algorithm::Chunked`]:
    /// address of an array with one word for each block, which counts the rounds of the block. For
    /// the kernels of [`transfer`](crate::transfer): address of the words that count messages and
    /// rounds.
    pub counter: u64,
    /// Length in bytes of one unit of a staging area. The unit depends on the kernel:
    ///
    /// - For kernels that move lines, the unit is a bank. A staging area has two banks, which
    ///   launches use alternately.
    /// - For messages sent as lines, the unit is a bank of a channel. A channel is the memory for
    ///   the messages from one rank to another rank. Each channel has two banks, which messages use
    ///   alternately.
    /// - For [`Algorithm::Chunked`] and other kernels with rings, the unit is a slot in the ring of
    ///   a block. The length must be a multiple of 128.
    pub bank_bytes: u64,
    /// For the kernels of [`reduce_scatter`](crate::reduce_scatter): distance in bytes between the
    /// starts of two consecutive parts of the input.
    pub stride: u64,
    /// For the reduction `PreMulSum`: zero-extended bits of the scalar by which this rank
    /// multiplies its input.
    pub scalar: u64,
    /// Number of ranks that take part in the call, 1 to [`MAX_RANKS`].
    pub ranks: u32,
    /// Rank of this PE among the ranks of the call.
    pub rank: u32,
    /// For kernels that reduce: the reduction of the call, as the number of a `ReduceOp`. For the
    /// kernels of [`transfer`](crate::transfer), which do not reduce: the operation to name in
    /// failure reports, as the number of a `KernelOp`.
    pub op: u32,
    /// For kernels with rings: number of blocks for which the staging areas have rings. A launch
    /// must not have more blocks.
    ///
    /// For messages through rings, a launch has exactly this number of blocks if
    /// [`is_combined`](Self::is_combined) is 1, or exactly this number of pairs of blocks if
    /// `is_combined` is 0.
    pub max_blocks: u32,
    /// For the kernels of all_reduce: the ranks that get the result, as the number that
    /// [`Results::code`] returns.
    pub results: u32,
    /// For [`Algorithm::Chunked`]: 1 if the other ranks store their results directly in this rank's
    /// [`recv`](Self::recv); otherwise 0. This field may differ between the ranks of a call.
    ///
    /// If the field is 1, the distance from this rank's staging area to `recv` must be the same in
    /// the address spaces of all ranks. The address and the length of `recv` must be multiples of
    /// [`LINE_BYTES`](crate::LINE_BYTES).
    pub is_symmetric: u32,
    /// For messages through rings: 1 if the launch has [`max_blocks`](Self::max_blocks) blocks,
    /// each of which pushes chunks and also copies chunks. 0 if the launch has `max_blocks` pairs
    /// of blocks: in each pair, one block pushes chunks and the other block copies chunks.
    pub is_combined: u32,
    /// For the kernels of [`scan`](crate::scan): 1 for an exclusive scan, 0 for an inclusive scan.
    /// In an exclusive scan, each rank gets the reduction of the inputs of all lower ranks, and
    /// rank 0 gets no result.
    pub is_exclusive: u32,
}

/// Returns `value(k)`, where `value` reads one element of an array in the kernel's argument. Calls
/// `value` for every index below [`MAX_RANKS`], and then selects one result. With an access at a
/// variable index, the compiler would copy the argument to local memory.
#[inline(always)]
pub(crate) fn select<T: Copy>(k: u32, value: impl Fn(usize) -> T) -> T {
    select_of::<MAX_RANKS, T>(k, value)
}

/// Like [`select`], but calls `value` only for the indices below `W`. `W` is 2, 4 or 8, and `k`
/// must be less than `W`.
#[inline(always)]
pub(crate) fn select_of<const W: usize, T: Copy>(k: u32, value: impl Fn(usize) -> T) -> T {
    let either = |bit: u32, low: T, high: T| if k & bit == 0 { low } else { high };
    let of_two = |first: usize| either(1, value(first), value(first + 1));
    let of_four = |first: usize| either(2, of_two(first), of_two(first + 2));
    match W {
        2 => of_two(0),
        4 => of_four(0),
        _ => either(4, of_four(0), of_four(4)),
    }
}

impl Call {
    /// Waits until the previous kernel in the stream has ended, and returns whether this argument
    /// is valid. A kernel whose only argument is a `Call` calls this method first.
    ///
    /// The method checks the argument before it waits. The check reads fields from the start to the
    /// end of the argument, so the argument is in the constant cache when the wait ends.
    #[inline(always)]
    pub(crate) fn begin(&self) -> bool {
        gpu::start_next_kernel();
        let is_call = self.areas[0] != 0 && self.send != 0 && self.counter != 0 && self.op <= ReduceOp::Xor as u32;
        gpu::wait_for_previous_kernel();
        is_call
    }

    /// Returns the PE number of rank `(rank + k) % ranks`, the rank `k` places after this rank.
    #[inline(always)]
    pub(crate) fn pe_after(&self, k: u32) -> u32 {
        select(k, |index| self.pes[index])
    }

    /// Returns the address of the staging area of rank `(rank + k) % ranks`, the rank `k` places
    /// after this rank.
    #[inline(always)]
    pub(crate) fn area_after(&self, k: u32) -> u64 {
        select(k, |index| self.areas[index])
    }

    /// Like [`Self::area_after`], but reads only the first `W` addresses. `W` is 2, 4 or 8, and `k`
    /// must be below `W`.
    #[inline(always)]
    pub(crate) fn area_of<const W: usize>(&self, k: u32) -> u64 {
        select_of::<W, u64>(k, |index| self.areas[index])
    }

    /// Returns whether the rank `k` places after this rank gets the whole result. If so, every
    /// other rank reduces a part, and pushes the reduced part to that rank.
    #[inline(always)]
    pub(crate) fn has_results(&self, k: u32) -> bool {
        self.results == EVERY || self.results == self.rank_after(k)
    }

    /// Returns whether this rank stores, in its own result, the part of the elements that it
    /// reduces. Returns false only if the call has a root ([`Results::Root`]) and this rank is not
    /// the root.
    #[inline(always)]
    pub(crate) fn keeps_own(&self) -> bool {
        self.results == OWN_PART || self.has_results(0)
    }

    /// Calls the closure `with` once for each number from 1 to the number of ranks minus 1, and
    /// passes the number to the closure. The loop over the numbers is unrolled in groups of `W`. If
    /// `MORE` is false, there is only one group, and the number of ranks must be at most `W`.
    #[inline(always)]
    pub(crate) fn each_after<const W: usize, const MORE: bool>(&self, mut with: impl FnMut(u32)) {
        let mut base = 0;
        loop {
            for k in base..base + W as u32 {
                if k > 0 && k < self.ranks {
                    with(k);
                }
            }
            base += W as u32;
            if !MORE || base >= self.ranks {
                return;
            }
        }
    }

    /// Returns the PE number of rank `rank`.
    #[inline(always)]
    pub(crate) fn pe_of(&self, rank: u32) -> u32 {
        self.pe_after(self.distance(rank))
    }

    /// Returns the PE number of rank `rank`, whose data has not arrived by the deadline. `rank` is
    /// this rank if all data has arrived since the last poll. The result is then the PE of the next
    /// rank, because the caller does not wait for its own data.
    #[inline(always)]
    pub(crate) fn late_pe(&self, rank: u32) -> u32 {
        self.pe_after(self.distance(rank).max(1))
    }

    /// Returns how many places the rank `rank` is after this rank.
    #[inline(always)]
    fn distance(&self, rank: u32) -> u32 {
        if rank >= self.rank { rank - self.rank } else { rank + self.ranks - self.rank }
    }

    /// Returns rank `(rank + k) % ranks`, the rank `k` places after this rank. `k` must be less
    /// than `ranks`.
    #[inline(always)]
    pub(crate) fn rank_after(&self, k: u32) -> u32 {
        let rank = self.rank + k;
        if rank >= self.ranks { rank - self.ranks } else { rank }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a call of rank `rank` of four ranks, which have the PE numbers 10 to 13.
    fn call(rank: u32) -> Call {
        let pes = core::array::from_fn(|k| 10 + (rank + k as u32) % 4);
        Call {
            areas: [0; MAX_RANKS],
            pes,
            send: 0,
            recv: 0,
            count: 0,
            sentinel: [0; 2],
            counter: 0,
            bank_bytes: 0,
            stride: 0,
            scalar: 0,
            ranks: 4,
            rank,
            op: 0,
            max_blocks: 1,
            results: EVERY,
            is_symmetric: 0,
            is_combined: 0,
            is_exclusive: 0,
        }
    }

    #[test]
    fn late_pe_is_the_pe_of_the_rank_without_data() {
        for (rank, late) in [(0, 3), (1, 0), (2, 1), (3, 2)] {
            assert_eq!(call(rank).late_pe(late), 10 + late);
        }
    }

    #[test]
    fn late_pe_is_never_the_calling_pe() {
        for rank in 0..4 {
            assert_eq!(call(rank).late_pe(rank), 10 + (rank + 1) % 4);
        }
    }
}
