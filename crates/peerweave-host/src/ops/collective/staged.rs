//! Collectives that pass their operands through memory that all ranks can read. For an operand of
//! at most 24 bytes, this memory is the entry line of the rank. In this cache line, a rank
//! publishes that it has entered the collective. For other operands, this memory is the rank's
//! staging area. A large operand passes through the staging areas in rounds, one block in each
//! round.
//!
//! All collectives in this file have the same three steps. Each rank packs its operand: it copies
//! the operand to this memory. Then all ranks synchronize. Then each rank computes its result from
//! the packed operands. Every block is packed before any result of the block is written, so a
//! result may overwrite an operand.
//!
//! Each rank has two staging areas. Round `i` uses area `i & 1`, so round `i + 2` overwrites the
//! data of round `i`. This is safe: a rank packs round `i + 2` after all ranks have packed round
//! `i + 1`, and a rank packs round `i + 1` after it has read the data of round `i`. After the last
//! round, the ranks synchronize again. Without this last synchronization, the next operation could
//! overwrite an area that a rank is still reading.

use super::counts::Counts;
use super::direct::share;
use super::{Algorithm, PerRank, Run};
use crate::memory::layout::STAGE_BYTES;
use crate::memory::line::Entry;
use crate::ops::tuning;
use crate::simd::{self, Input, Stores};
use crate::sync::wait::Stop;
use peerweave_core::backend::CollectiveKind as Kind;
use std::ops::Range;

/// Copies a part of an operand to a result. Does nothing if both addresses are the same.
///
/// # Safety
/// As for [`simd::copy`], or both addresses are the same.
#[inline]
pub(super) unsafe fn copy_part(to: *mut u8, from: *const u8, len: usize) {
    if to.cast_const() != from {
        // SAFETY: guaranteed by the caller.
        unsafe { simd::copy(to, from, len) };
    }
}

impl Run<'_> {
    /// Packs one block of this rank's operand: copies the elements with the indices `block` from
    /// each part of the operand. The copies of the parts follow each other at `to` without gaps.
    #[inline]
    pub(super) fn pack(&self, to: *mut u8, block: Range<usize>) {
        let Some(send) = self.op.send else { return };
        // In these collectives, only the operand of the root is used.
        if matches!(self.op.kind, Kind::Broadcast | Kind::Scatter) && self.me != self.op.root.index() {
            return;
        }
        let from = self.shared.address(send).cast_const();
        let size = self.element_bytes();
        let len = block.len() * size;
        for part in 0..self.parts() {
            let start = (part * self.op.count + block.start) * size;
            if self.op.kind == Kind::AllToAllStrided {
                let at = part * self.op.count + block.start;
                let stride = self.op.strides()[0];
                let from = from.wrapping_add(at * stride * size);
                self.copy_strided(to.wrapping_add(part * len), 1, from, stride, block.len());
                continue;
            }
            // SAFETY: the operand has `parts * count` elements (checked by the core). `to` has room
            // for `parts` blocks, by the choice of the algorithm or of `block_len`. Staging areas
            // and lines do not overlap buffers.
            unsafe { simd::copy(to.wrapping_add(part * len), from.wrapping_add(start), len) };
        }
    }

    /// Copies `count` elements. The strides of source and target are numbers of elements. Packed
    /// memory has the stride 1.
    fn copy_strided(&self, to: *mut u8, to_stride: usize, from: *const u8, from_stride: usize, count: usize) {
        let size = self.element_bytes();
        for i in 0..count {
            let (to, from) = (to.wrapping_add(i * to_stride * size), from.wrapping_add(i * from_stride * size));
            // SAFETY: callers pass elements of a buffer, whose last element the core has checked,
            // and packed memory that has room for the elements. The buffer and the packed memory do
            // not overlap.
            unsafe { simd::copy(to, from, size) };
        }
    }

    #[inline]
    pub(super) fn consume_lines(&self, entries: &[Entry]) {
        let mut inputs = PerRank::new();
        for entry in entries {
            inputs.push(Input { at: entry.payload.as_ptr().cast(), scalar: entry.payload[2] });
        }
        self.consume(&inputs, 0..self.op.count);
    }

    #[inline]
    pub(super) fn consume_staged(&self, entries: &[Entry]) {
        let mut inputs = PerRank::new();
        for (rank, entry) in entries.iter().enumerate() {
            let staged = || self.step.stage(rank, self.step.parity()).cast_const();
            let at = if rank == self.me { self.own_operand().unwrap_or_else(staged) } else { staged() };
            inputs.push(Input { at, scalar: entry.payload[2] });
        }
        self.consume(&inputs, 0..self.op.count);
    }

    /// Returns the address of this rank's operand in the program's buffer. The caller reads this
    /// buffer instead of the packed copy. A read of the copy would be slower, because it would wait
    /// until the stores to the copy have reached the cache. Even in an in-place collective the read
    /// is correct, because each element is read before the result overwrites it.
    ///
    /// Returns `None` if the caller must read the packed copy. This is necessary if the collective
    /// has no operand, if the copy has a different layout, or if the program has passed a reduction
    /// function.
    #[inline]
    fn own_operand(&self) -> Option<*const u8> {
        let lies_apart = self.op.kind == Kind::AllToAllStrided || self.op.function().is_some();
        let send = self.op.send.filter(|_| !lies_apart)?;
        Some(self.shared.address(send).cast_const())
    }

    /// Copies the operand of the root to this rank's result. In a scatter, copies only the part for
    /// this rank.
    #[inline]
    pub(super) fn consume_root(&self, algorithm: Algorithm, operand: &Entry) {
        let root = self.op.root.index();
        let Some(recv) = self.op.recv else { return };
        let part = if self.op.kind == Kind::Scatter { self.me } else { 0 };
        let len = self.op.count * self.element_bytes();
        let own = if self.me == root { self.own_operand() } else { None };
        let first = match (own, algorithm) {
            (Some(own), _) => own,
            (None, Algorithm::InLine) => operand.payload.as_ptr().cast(),
            (None, Algorithm::BehindLine) => self.step.operand(root).cast_const(),
            (None, _) => self.step.stage(root, self.step.parity()).cast_const(),
        };
        // SAFETY: the root has passed or packed `parts` blocks of `len` bytes. The result has
        // `count` elements. It is at its place in the operand of this rank or does not overlap the
        // operand (checked by the core). It overlaps neither a line nor a staging area.
        unsafe { copy_part(self.shared.address(recv), first.wrapping_add(part * len), len) };
    }

    /// Computes one block of this rank's result from the packed operands `inputs`. `block` contains
    /// the indices of the elements. If the operand or the result has a part for each rank, these
    /// are indices in every part.
    #[inline]
    fn consume(&self, inputs: &[Input], block: Range<usize>) {
        let size = self.element_bytes();
        let len = block.len() * size;
        let Some(recv) = self.op.recv else { return };
        let root = self.op.root.index();
        let to = self.shared.address(recv).wrapping_add(block.start * size);
        let part_of = |rank: usize, part: usize| inputs[rank].at.wrapping_add(part * len);
        let stride = self.op.count * size;
        let copy = |to: *mut u8, from: *const u8| {
            // SAFETY: operands have `parts` blocks of `len` bytes. The result has room for `count`
            // elements, or `n * count` for kinds that gather. A part is at its place in the result,
            // or the part and the result do not overlap (checked by the core).
            unsafe { copy_part(to, from, len) }
        };
        match self.op.kind {
            Kind::AllReduce | Kind::AllReduceRmsNorm => self.reduce(inputs, &[to], block.len(), Stores::Cached),
            Kind::Reduce if self.me == root => self.reduce(inputs, &[to], block.len(), Stores::Cached),
            Kind::Scan => self.reduce(&inputs[..=self.me], &[to], block.len(), Stores::Cached),
            Kind::ExclusiveScan if self.me > 0 => self.reduce(&inputs[..self.me], &[to], block.len(), Stores::Cached),
            Kind::ReduceScatter => {
                let mine: PerRank<Input> =
                    (0..self.n).map(|rank| Input { at: part_of(rank, self.me), scalar: inputs[rank].scalar }).collect();
                self.reduce(&mine, &[to], block.len(), Stores::Cached);
            }
            Kind::Broadcast => copy(to, part_of(root, 0)),
            Kind::Scatter => copy(to, part_of(root, self.me)),
            Kind::AllGather => (0..self.n).for_each(|rank| copy(to.wrapping_add(rank * stride), part_of(rank, 0))),
            Kind::Gather if self.me == root => {
                (0..self.n).for_each(|rank| copy(to.wrapping_add(rank * stride), part_of(rank, 0)));
            }
            Kind::AllToAllStrided => {
                let stride = self.op.strides()[1];
                let to = self.shared.address(recv);
                for rank in 0..self.n {
                    let at = (rank * self.op.count + block.start) * stride * size;
                    self.copy_strided(to.wrapping_add(at), stride, part_of(rank, self.me), 1, block.len());
                }
            }
            Kind::AllToAll => (0..self.n).for_each(|rank| copy(to.wrapping_add(rank * stride), part_of(rank, self.me))),
            _ => {}
        }
    }

    /// Runs the rest of the collective in rounds. Each round passes one block of every operand
    /// through the staging areas. All ranks have entered. `phases_done` is the number of phases
    /// that this collective has already completed. Each phase ends with a synchronization of all
    /// ranks.
    pub(super) fn in_rounds(&self, entries: &[Entry], counts: Option<&Counts>, phases_done: u32) -> Result<(), Stop> {
        let fitting = STAGE_BYTES / self.element_bytes() / self.parts();
        let block_len = if fitting < 16 { fitting } else { fitting / 16 * 16 };
        assert!(
            block_len > 0,
            "the team has {} ranks, expected at most {} (the number of elements that a staging area holds)",
            self.n,
            STAGE_BYTES / self.element_bytes()
        );
        let count = counts.map_or(self.op.count, Counts::longest);
        let copy = counts.filter(|_| self.overwrites_operand()).map(|counts| self.copy_operand(counts));
        let mut phase = phases_done;
        for start in (0..count).step_by(block_len) {
            let block = start..count.min(start + block_len);
            let parity = (phase & 1) as usize;
            let stage = self.step.stage(self.me, parity);
            match counts {
                None => self.pack(stage, block.clone()),
                Some(counts) => self.pack_vector(stage, block.clone(), block_len, counts, copy.as_deref()),
            }
            phase += 1;
            self.step.sync(phase)?;
            let inputs: PerRank<Input> = entries
                .iter()
                .enumerate()
                .map(|(rank, entry)| Input { at: self.step.stage(rank, parity), scalar: entry.payload[2] })
                .collect();
            if matches!(self.op.kind, Kind::AllReduce | Kind::AllReduceRmsNorm) && self.n >= tuning::SHARED_REDUCTION_RANKS {
                self.reduce_share(&inputs, block.len());
                phase += 1;
                self.step.sync(phase)?;
                let size = self.element_bytes();
                let to = self.address(self.op.recv).wrapping_add(block.start * size);
                // SAFETY: the block is in the result (checked by the core). A staging area has room
                // for the block and does not overlap the result.
                unsafe { simd::copy(to, stage, block.len() * size) };
                continue;
            }
            match counts {
                None => self.consume(&inputs, block),
                Some(counts) => self.consume_vector(&inputs, block, block_len, counts),
            }
        }
        self.step.sync(phase + 1)
    }

    /// Reduces this rank's share of the elements. Each rank reduces a different share. The inputs
    /// are the packed operands of all ranks. The result overwrites the same share in the staging
    /// areas of all ranks.
    fn reduce_share(&self, inputs: &[Input], block_len: usize) {
        let size = self.element_bytes();
        let mine = share(block_len, self.n, self.me, size);
        let at = mine.start * size;
        let shares: PerRank<Input> = inputs.iter().map(|input| Input { at: input.at.wrapping_add(at), ..*input }).collect();
        let outputs: PerRank<*mut u8> = shares.iter().map(|input| input.at.cast_mut()).collect();
        self.reduce(&shares, &outputs, mine.len(), Stores::Cached);
    }

    fn copy_operand(&self, counts: &Counts) -> Vec<u8> {
        let size = self.element_bytes();
        let from = self.address(self.op.send).cast_const();
        // Empty parts are skipped, because their offset may be any number.
        let parts = || (0..self.n).filter(|&rank| counts.sent(self.me, rank) > 0);
        let end = parts().map(|rank| counts.send_offset(self.me, rank) + counts.sent(self.me, rank)).max().unwrap_or(0);
        let mut copy = vec![0; end * size];
        for rank in parts() {
            let (at, len) = (counts.send_offset(self.me, rank) * size, counts.sent(self.me, rank) * size);
            // SAFETY: the core has checked that each part is in the buffer. `copy` extends to the
            // end of the last part.
            unsafe { simd::copy(copy[at..at + len].as_mut_ptr(), from.wrapping_add(at), len) };
        }
        copy
    }

    fn pack_vector(&self, to: *mut u8, block: Range<usize>, block_len: usize, counts: &Counts, copy: Option<&[u8]>) {
        let size = self.element_bytes();
        if self.op.send.is_none() {
            return;
        }
        let from = copy.map_or_else(|| self.address(self.op.send).cast_const(), <[u8]>::as_ptr);
        for rank in 0..self.n {
            let end = block.end.min(counts.sent(self.me, rank));
            if block.start < end {
                let at = (counts.send_offset(self.me, rank) + block.start) * size;
                // SAFETY: the part is in the buffer (checked by the core), or in its copy, which
                // has the same offsets. `n` blocks of `block_len` elements fit in a staging area.
                unsafe {
                    simd::copy(to.wrapping_add(rank * block_len * size), from.wrapping_add(at), (end - block.start) * size)
                };
            }
        }
    }

    fn consume_vector(&self, inputs: &[Input], block: Range<usize>, block_len: usize, counts: &Counts) {
        let size = self.element_bytes();
        if self.op.recv.is_none() {
            return;
        }
        let to = self.address(self.op.recv);
        for (rank, input) in inputs.iter().enumerate() {
            let end = block.end.min(counts.sent(rank, self.me));
            if block.start < end {
                let at = (counts.recv_offset(self.me, rank) + block.start) * size;
                // SAFETY: as in `pack_vector`. This rank receives the number of elements that
                // `rank` sends (compared in `read_counts`).
                unsafe {
                    simd::copy(
                        to.wrapping_add(at),
                        input.at.wrapping_add(self.me * block_len * size),
                        (end - block.start) * size,
                    );
                }
            }
        }
    }
}
