//! Collectives on symmetric buffers. Every rank accesses the buffers of all ranks directly, and
//! each byte is copied once.
//!
//! All ranks have entered the collective, so all buffers are ready. No rank returns before all
//! ranks have finished their accesses. Each element of a result is computed by one rank, which
//! stores the element to all ranks that need the element. So an element has the same bits on all
//! ranks. Each rank moves about the same number of bytes.

use super::counts::Counts;
use super::{InPlace, NO_BUFFER, PerRank, Run};
use crate::memory::line::Entry;
use crate::ops::tuning;
use crate::simd::{self, Input, Stores};
use crate::sync::wait::Stop;
use peerweave_core::backend::CollectiveKind as Kind;
use peerweave_types::SymOffset;
use std::ops::Range;

/// The buffers of all ranks, as addresses that are valid in this process. An address is null if the
/// rank has no such buffer.
struct Buffers {
    send: PerRank<*mut u8>,
    recv: PerRank<*mut u8>,
    scalars: PerRank<u64>,
}

/// Divides `0..count` into `n` shares at cache-line boundaries, and returns share `index`.
pub(super) fn share(count: usize, n: usize, index: usize, element_bytes: usize) -> Range<usize> {
    let line = (64 / element_bytes).max(1);
    let each = count.div_ceil(n).next_multiple_of(line);
    (each * index).min(count)..(each * (index + 1)).min(count)
}

impl Run<'_> {
    fn buffers(&self, entries: &[Entry]) -> Buffers {
        let at = |rank: usize, code: u64| match code {
            NO_BUFFER => std::ptr::null_mut(),
            offset => self.step.peers.segments.symmetric(self.step.team.members[rank], SymOffset(offset)),
        };
        Buffers {
            send: entries.iter().enumerate().map(|(rank, entry)| at(rank, entry.payload[0])).collect(),
            recv: entries.iter().enumerate().map(|(rank, entry)| at(rank, entry.payload[1])).collect(),
            scalars: entries.iter().map(|entry| entry.payload[2]).collect(),
        }
    }

    /// Runs the rest of the collective. All ranks have entered. `phases_done` is the number of
    /// phases that this collective has already completed. Each phase ends with a synchronization of
    /// all ranks.
    pub(super) fn direct(&self, entries: &[Entry], counts: Option<&Counts>, phases_done: u32) -> Result<(), Stop> {
        let buffers = self.buffers(entries);
        // Some ranks may work in place while others do not, but all ranks must choose the same
        // algorithm.
        let in_place = super::in_place(entries);
        match (self.op.kind, counts) {
            (Kind::AllReduce | Kind::AllReduceRmsNorm | Kind::Reduce, _) => self.direct_reduce(&buffers),
            (Kind::ReduceScatter, _) => self.direct_reduce_scatter(&buffers),
            (Kind::Broadcast, _) => self.direct_broadcast(&buffers),
            (Kind::AllGather | Kind::Gather, _) => self.direct_gather(&buffers),
            (Kind::Scatter, _) => self.direct_scatter(&buffers),
            (Kind::AllToAll, _) if in_place == InPlace::All => self.direct_exchange(&buffers),
            (Kind::AllToAllStrided, _) => return self.in_rounds(entries, counts, phases_done),
            // A result would overwrite operands that other ranks have not read yet, so these
            // collectives use the staging areas.
            (Kind::AllToAll | Kind::AllToAllV | Kind::Scan | Kind::ExclusiveScan, _) if in_place != InPlace::None => {
                return self.in_rounds(entries, counts, phases_done);
            }
            (Kind::AllToAll, _) => self.direct_all_to_all(&buffers),
            (Kind::Scan | Kind::ExclusiveScan, _) => self.direct_scan(&buffers),
            (_, Some(counts)) => self.direct_vector(&buffers, counts),
            _ => {}
        }
        self.step.sync(phases_done + 1)
    }

    /// Chooses the kind of stores for a collective. `bytes_of_all` is the number of bytes that all
    /// ranks together access. If these bytes do not fit in the caches, the stores bypass the
    /// caches.
    fn stores(&self, bytes_of_all: usize) -> Stores {
        if bytes_of_all >= tuning::STREAMING_FOOTPRINT { Stores::Streaming } else { Stores::Cached }
    }

    /// Like [`Self::stores`], for a reduction. `in_place` returns whether an input is also an
    /// output. If this is the case, the stores do not bypass the caches: the caches contain the
    /// lines of this input, which the reduction has just read, and a bypassing store would have to
    /// remove these lines first.
    fn reduction_stores(&self, bytes_of_all: usize, in_place: impl FnOnce() -> bool) -> Stores {
        match self.stores(bytes_of_all) {
            Stores::Streaming if in_place() => Stores::Cached,
            stores => stores,
        }
    }

    /// Returns all ranks except this rank, in ascending order. The order starts after this rank,
    /// and continues at rank 0 after the last rank. So each rank starts at a different rank.
    fn others_from_here(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, n) = (self.me, self.n);
        (1..n).map(move |distance| (me + distance) % n)
    }

    fn copy(&self, to: *mut u8, from: *const u8, bytes: usize, stores: Stores) {
        if std::ptr::eq(to, from) {
            return;
        }
        // SAFETY: the core of each rank has checked the sizes of the buffers against the same
        // count, because the calls were compared. The ranges are the same bytes (excluded above) or
        // do not overlap.
        unsafe {
            match stores {
                Stores::Cached => simd::copy(to, from, bytes),
                Stores::Streaming => simd::copy_streaming(to, from, bytes),
            }
        }
    }

    fn direct_reduce(&self, buffers: &Buffers) {
        let size = self.element_bytes();
        let share = share(self.op.count, self.n, self.me, size);
        let at = |start: *mut u8| start.wrapping_add(share.start * size);
        let inputs: PerRank<Input> =
            buffers.send.iter().zip(&buffers.scalars).map(|(&send, &scalar)| Input { at: at(send), scalar }).collect();
        let outputs: PerRank<*mut u8> = match self.op.kind {
            Kind::Reduce => [at(buffers.recv[self.op.root.index()])].into_iter().collect(),
            _ => buffers.recv.iter().map(|&recv| at(recv)).collect(),
        };
        let bytes_of_all = self.op.count * size * (self.n + self.n.min(outputs.len() * self.n));
        let in_place = || std::iter::zip(&buffers.send, &buffers.recv).any(|(&send, &recv)| std::ptr::eq(send, recv));
        let stores = self.reduction_stores(bytes_of_all, in_place);
        self.reduce(&inputs, &outputs, share.len(), stores);
    }

    /// Computes this rank's result of a scan: reduces the operands of all lower ranks. An inclusive
    /// scan also includes the operand of this rank.
    fn direct_scan(&self, buffers: &Buffers) {
        let ranks = if self.op.kind == Kind::Scan { self.me + 1 } else { self.me };
        let operands = buffers.send.iter().zip(&buffers.scalars).take(ranks);
        let inputs: PerRank<Input> = operands.map(|(&send, &scalar)| Input { at: send, scalar }).collect();
        if !inputs.is_empty() {
            let stores = self.stores(self.op.count * self.element_bytes() * (self.n + 1));
            self.reduce(&inputs, &[buffers.recv[self.me]], self.op.count, stores);
        }
    }

    fn direct_reduce_scatter(&self, buffers: &Buffers) {
        let part = self.op.count * self.element_bytes() * self.me;
        let inputs: PerRank<Input> = buffers
            .send
            .iter()
            .zip(&buffers.scalars)
            .map(|(&send, &scalar)| Input { at: send.wrapping_add(part), scalar })
            .collect();
        let outputs = [buffers.recv[self.me]];
        let bytes_of_all = self.op.count * self.element_bytes() * self.n * (self.n + 1);
        let in_place = || std::ptr::eq(inputs[self.me].at, outputs[0]);
        self.reduce(&inputs, &outputs, self.op.count, self.reduction_stores(bytes_of_all, in_place));
    }

    /// Runs a broadcast. The ranks divide the work: the root writes the first elements into the
    /// results of the other ranks, and each other rank reads the remaining elements from the root.
    fn direct_broadcast(&self, buffers: &Buffers) {
        let size = self.element_bytes();
        let root = self.op.root.index();
        let bytes = self.op.count * size;
        let from = buffers.send[root];
        let stores = self.stores(bytes * (self.n + 1));
        // A root that also writes its own result writes less for the other ranks.
        let own = usize::from(buffers.recv[root] != from && !buffers.recv[root].is_null());
        let pushed = if self.n > 1 { share(self.op.count, self.n + 2 * own, 0, size).len() * size } else { 0 };
        if self.me == root {
            for rank in self.others_from_here() {
                self.copy(buffers.recv[rank], from, pushed, stores);
            }
            if own == 1 {
                self.copy(buffers.recv[root], from, bytes, stores);
            }
        } else {
            self.copy(buffers.recv[self.me].wrapping_add(pushed), from.wrapping_add(pushed), bytes - pushed, stores);
        }
    }

    /// Runs a gather or an all-gather. Each rank writes its operand into the result buffer of the
    /// root, or of all ranks. A rank writes its own operand, because the operand is probably in its
    /// own cache.
    fn direct_gather(&self, buffers: &Buffers) {
        let bytes = self.op.count * self.element_bytes();
        let stores = self.stores(bytes * self.n * (self.n + 1));
        let to = |rank: usize| buffers.recv[rank].wrapping_add(bytes * self.me);
        if self.op.kind == Kind::Gather {
            self.copy(to(self.op.root.index()), buffers.send[self.me], bytes, stores);
            return;
        }
        for rank in self.others_from_here() {
            self.copy(to(rank), buffers.send[self.me], bytes, stores);
        }
        self.copy(to(self.me), buffers.send[self.me], bytes, stores);
    }

    fn direct_scatter(&self, buffers: &Buffers) {
        let bytes = self.op.count * self.element_bytes();
        let from = buffers.send[self.op.root.index()].wrapping_add(bytes * self.me);
        self.copy(buffers.recv[self.me], from, bytes, self.stores(bytes * self.n * 2));
    }

    fn direct_all_to_all(&self, buffers: &Buffers) {
        let bytes = self.op.count * self.element_bytes();
        let stores = self.stores(bytes * self.n * self.n * 2);
        for rank in self.others_from_here().chain([self.me]) {
            let to = buffers.recv[rank].wrapping_add(bytes * self.me);
            self.copy(to, buffers.send[self.me].wrapping_add(bytes * rank), bytes, stores);
        }
    }

    /// Runs an all-to-all in place. Each pair of ranks swaps two parts: the part that the first
    /// rank sends to the second rank, and the part that the second rank sends to the first rank.
    /// The two ranks share this work. The lower rank swaps the first half of the elements of both
    /// parts, and the higher rank swaps the second half.
    fn direct_exchange(&self, buffers: &Buffers) {
        let size = self.element_bytes();
        let bytes = self.op.count * size;
        let mut scratch = vec![0u8; bytes.min(16 << 10)];
        for rank in self.others_from_here() {
            let mine = buffers.send[self.me].wrapping_add(bytes * rank);
            let theirs = buffers.send[rank].wrapping_add(bytes * self.me);
            let half = share(self.op.count, 2, usize::from(self.me > rank), size);
            for start in (half.start * size..half.end * size).step_by(scratch.len().max(1)) {
                let len = scratch.len().min(half.end * size - start);
                // SAFETY: as in `copy`. `scratch` is private and has at least `len` bytes. The
                // halves of a pair do not overlap.
                unsafe {
                    simd::copy(scratch.as_mut_ptr(), mine.wrapping_add(start), len);
                    simd::copy(mine.wrapping_add(start), theirs.wrapping_add(start), len);
                    simd::copy(theirs.wrapping_add(start), scratch.as_ptr(), len);
                }
            }
        }
    }

    /// Runs a collective whose parts have different lengths. Each rank copies its parts directly
    /// into the buffers of the ranks that receive these parts.
    fn direct_vector(&self, buffers: &Buffers, counts: &Counts) {
        let size = self.element_bytes();
        let stores = self.stores(counts.total() * size * 2);
        for rank in self.others_from_here().chain([self.me]) {
            let bytes = counts.sent(self.me, rank) * size;
            if bytes > 0 {
                let to = buffers.recv[rank].wrapping_add(counts.recv_offset(rank, self.me) * size);
                let from = buffers.send[self.me].wrapping_add(counts.send_offset(self.me, rank) * size);
                self.copy(to, from, bytes, stores);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_shares_cover_the_buffer_and_start_at_cache_lines() {
        for size in [1, 2, 4, 8] {
            for count in [0, 1, 15, 16, 17, 63, 64, 65, 1000, 4097] {
                for n in [1, 2, 3, 8] {
                    let mut next = 0;
                    for index in 0..n {
                        let share = share(count, n, index, size);
                        assert_eq!(share.start, next);
                        assert!((share.start * size).is_multiple_of(64) || share.start == count);
                        next = share.end;
                    }
                    assert_eq!(next, count);
                }
            }
        }
    }
}
