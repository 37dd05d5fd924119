//! The chunked algorithm of all_reduce. The input is divided into one part for each rank. Rank `r`
//! reduces part `r`, and pushes the result to every rank. The parts travel in chunks, through rings
//! of slots in the ranks' staging areas. Each block has its own ring. Flags in the receiver's area
//! show that a chunk has arrived.
//!
//! Block `b` of each rank handles the same chunks of every part, one chunk of each part in each
//! round. With `n` blocks these are the chunks `b`, `b + n`, `b + 2n` and so on. So all blocks work
//! on neighbouring chunks at the same time. Each round of a block has three steps:
//!
//! 1. The block pushes its chunk of part `r` to rank `r`, for each `r`. Then it raises its first
//!    flag on each rank.
//! 2. The block waits for the first flags of all ranks, reduces the chunks, and pushes the result
//!    to each rank. Then it raises its second flag on each rank.
//! 3. The block waits for the second flags of all ranks, and copies the reduced chunks that have
//!    arrived to the result.
//!
//! Step 1 runs one round ahead of step 2, and step 3 runs one round behind step 2. Each block
//! counts its rounds in a word that outlives the launch. A flag is the number of the last round for
//! which its rank has raised it, so the flag only grows.
//!
//! # Why three slots are enough
//! Each block has three slots for inputs and three for results. In round `j`, a rank
//!
//! 1. pushes inputs of round `j + 1`, and raises its first flag for that round,
//! 2. waits for the first flags of round `j`, reduces, pushes results, and raises its second flag,
//! 3. waits for the second flags of round `j - 1`, and copies the results of that round.
//!
//! In a slot, the inputs of round `j + 1` replace the inputs of round `j - 2`. The receiving rank
//! reads the old inputs before it raises its second flag of round `j - 2`. The pushing rank saw
//! that flag in step 3 of round `j - 1`.
//!
//! In a slot, the results of round `j` replace the results of round `j - 3`. The receiving rank
//! copies the old results in step 3 of its round `j - 2`. In its next round, `j - 1`, it raises its
//! first flag of round `j`. The pushing rank saw that flag in step 2 of round `j`.
//!
//! When a launch has ended, all results have been copied and all inputs have been read.
//!
//! # Results without a copy
//! A rank offers its result buffer to the other ranks if this buffer is in symmetric memory. Before
//! the rank raises its first flag, it writes the *offer* beside that flag: the distance of the
//! result buffer from its staging area, or 0 for no offer. In step 2, each other rank stores its
//! lines directly in the offered buffer. In step 3, the offering rank only waits.
//!
//! A rank that stores directly has seen the first flag of the offering rank, so the offering rank
//! has begun the call. The result buffer may be the input buffer, because the offering rank has
//! pushed these lines of its input before it raised that flag. The offering rank writes its next
//! offer in a later launch. Before the current launch ends, it has seen the second flag of every
//! other rank for the last round. Each rank reads the offer before it raises its second flag.

use crate::epoch::pointer;
use crate::line::copy::{each, load, one_by_one, store, two_by_two};
use crate::line::reduce::{Class, outgoing, reduce};
use crate::line::{LINE_BYTES, Operand};
use crate::{Call, MAX_RANKS};
use peerweave_device::gpu::{Access, Gpu, Sys, Vector};
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

/// Number of slots for inputs in the ring of a block. The ring has as many additional slots for
/// results.
const SLOTS: u64 = 3;
/// Size in bytes of a pair of flags, each in its own cache line. A staging area has one pair for
/// each block and each rank. That rank raises the flags to notify the block.
pub const FLAG_BYTES: u64 = 256;
/// Offset in bytes of a rank's offer from the rank's first flag. The offer is a number: the
/// distance from the rank's staging area to the rank's result buffer. The offer and the first flag
/// are in the same cache line.
const OFFER: u64 = 8;
/// Offset in bytes of the second flag in the memory for a rank's flags ([`FLAG_BYTES`]). The second
/// flag shows that a reduced chunk has arrived. The first flag, at offset 0, shows that a chunk of
/// an input has arrived.
const SECOND: u64 = 128;

/// Returns the size in bytes of the flags and rings that `blocks` blocks of
/// [`Algorithm::Chunked`](crate::Algorithm::Chunked) need in a staging area. The ring of a block
/// has six slots of `slot_bytes` bytes: three for inputs, three for results.
pub const fn ring_bytes(blocks: u32, slot_bytes: u64) -> u64 {
    blocks as u64 * (MAX_RANKS as u64 * FLAG_BYTES + SLOTS * 2 * slot_bytes)
}

/// The arguments of one block of the chunked kernel, and the division of its work. These values do
/// not change during a launch.
struct Block<'a, const PLAIN: bool> {
    ctx: &'a Context,
    call: &'a Call,
    send: Operand<PLAIN>,
    recv: Operand<PLAIN>,
    lines: u64,
    /// Number of 16-byte lines in the part of the input that each rank reduces.
    part: u64,
    /// Length of a chunk in 16-byte lines. A chunk is the piece of a part that a block handles in
    /// one round.
    chunk: u64,
    /// Each slot has one section for each rank. Length of a section in 16-byte lines, at least
    /// `chunk`.
    slot_lines: u64,
    /// Number of rounds that this block ran in all earlier launches.
    before: u64,
}

impl<const PLAIN: bool> Block<'_, PLAIN> {
    /// Returns the address of the two flags that rank `rank` raises for this block. `area` is the
    /// address of the staging area that contains the flags.
    #[inline(always)]
    fn flags(&self, area: u64, rank: u32) -> u64 {
        area + (u64::from(gpu::block_idx().x) * MAX_RANKS as u64 + u64::from(rank)) * FLAG_BYTES
    }

    /// Returns the address at which a chunk is stored in the receiver's staging area. Rank `rank`
    /// pushes the chunk to this block in round `round`. `area` is the address of the staging area.
    /// If `is_result` is true, the chunk is a part of the result, otherwise a part of an input.
    #[inline(always)]
    fn slot(&self, area: u64, round: u64, rank: u32, is_result: bool) -> u64 {
        let slot = (u64::from(gpu::block_idx().x) * SLOTS + (self.before + round) % SLOTS) * 2 + u64::from(is_result);
        let rings = area + u64::from(self.call.max_blocks) * MAX_RANKS as u64 * FLAG_BYTES;
        rings + slot * self.call.bank_bytes + u64::from(rank) * self.slot_lines * LINE_BYTES as u64
    }

    /// Returns the first line and the number of lines of the chunk of part `rank` that this block
    /// handles in round `round`. Lines are counted from the start of the whole input, not of the
    /// part.
    #[inline(always)]
    fn range(&self, round: u64, rank: u32) -> (u64, u64) {
        let in_part = (round * u64::from(gpu::grid_dim().x) + u64::from(gpu::block_idx().x)) * self.chunk;
        let line = u64::from(rank) * self.part + in_part;
        let end = (u64::from(rank + 1) * self.part).min(self.lines);
        (line, end.saturating_sub(line).min(self.chunk))
    }

    /// Pushes one chunk of this rank's input to each other rank. The chunk belongs to the part that
    /// the receiving rank reduces.
    #[inline(always)]
    fn push<T: Class>(&self, round: u64) {
        let call = self.call;
        for k in 1..call.ranks {
            let (line, n) = self.range(round, call.rank_after(k));
            let to = self.slot(call.area_after(k), round, call.rank, false);
            // SAFETY: the ring has a slot of `bank_bytes` bytes for each round, with a chunk for
            // each rank.
            let store = |index, value| unsafe { store(to, index, value) };
            if self.send.is_whole::<T>(line, n) && (PLAIN || call.op != ReduceOp::PreMulSum as u32) {
                each(n, |index| self.send.read_whole(line + index), store);
            } else {
                one_by_one(n, |index| outgoing::<T, PLAIN>(call.op, call.scalar, self.send.read::<T>(line + index)), store);
            }
        }
    }

    /// Reduces the chunks that all ranks have pushed for this rank's part, and pushes the reduced
    /// chunk to every rank that gets it.
    #[inline(always)]
    fn reduce<T: Class, const W: usize>(&self, round: u64) {
        let call = self.call;
        let (line, n) = self.range(round, call.rank);
        let own = |index| outgoing::<T, PLAIN>(call.op, call.scalar, self.send.read::<T>(line + index));
        // With fewer than `W` ranks, the thread loads the last rank's chunk again, so that no
        // branch separates the loads. The thread also loads this rank's own slot, which no rank
        // writes. The thread does not use the loaded value.
        let rank = |index: usize| (index as u32).min(call.ranks - 1);
        let from: [u64; W] = core::array::from_fn(|index| self.slot(call.areas[0], round, rank(index), false));
        let to: [u64; W] = core::array::from_fn(|k| {
            let (area, offer) = (call.area_after(k as u32), self.offer(k as u32));
            if offer != 0 { area.wrapping_add(offer) + line * LINE_BYTES as u64 } else { self.slot(area, round, call.rank, true) }
        });
        let keeps = call.keeps_own();
        let lines = |index| {
            let mine = own(index);
            // SAFETY: as in `push`; this thread has seen the first flag of the rank.
            let mut found = from.map(|from| unsafe { load(from, index) });
            for (index, line) in found.iter_mut().enumerate() {
                if rank(index) == call.rank {
                    *line = mine;
                }
            }
            found
        };
        let push = |index, lines: [Vector; W]| {
            let result = reduce::<T, W, PLAIN>(call.op, call.ranks, &lines);
            for k in 1..W {
                if (k as u32) < call.ranks && call.has_results(k as u32) {
                    // SAFETY: as in `push`; or the line is in an offered result. This thread has
                    // seen the first flag of the offering rank, so that rank has begun the call and
                    // waits for the line.
                    unsafe { store(to[k], index, result) };
                }
            }
            if keeps {
                self.recv.write::<T>(line + index, result);
            }
        };
        // Two lines of each rank fit in registers only for up to 4 ranks.
        if W <= 4 {
            two_by_two(n, lines, push);
        } else {
            one_by_one(n, lines, push);
        }
    }

    /// Copies the reduced chunks of a round from this rank's ring to the result. The other ranks
    /// have reduced and pushed these chunks.
    #[inline(always)]
    fn copy<T: Class>(&self, round: u64) {
        let call = self.call;
        for k in 1..call.ranks {
            let rank = call.rank_after(k);
            let (line, n) = self.range(round, rank);
            let from = self.slot(call.areas[0], round, rank, true);
            // SAFETY: as in `push`; this thread has seen the second flag of the rank.
            let load = |index| unsafe { load(from, index) };
            if self.recv.is_whole::<T>(line, n) {
                each(n, load, |index, value| self.recv.write_whole(line + index, value));
            } else {
                one_by_one(n, load, |index, value| self.recv.write::<T>(line + index, value));
            }
        }
    }

    /// Writes this rank's offer to every other rank. The offer is the distance of the rank's result
    /// buffer from its staging area, or 0 if the other ranks must not store in that buffer.
    #[inline(always)]
    fn write_offer(&self) {
        let (call, thread) = (self.call, gpu::thread_idx().x);
        if thread > 0 && thread < call.ranks {
            let offer = if call.is_symmetric != 0 { call.recv.wrapping_sub(call.areas[0]) } else { 0 };
            let word = pointer::<u64>(self.flags(call.area_after(thread), call.rank) + OFFER);
            // SAFETY: the word is in the area of a mapped peer and is accessed only atomically.
            unsafe { <u64 as Access<Sys>>::store_relaxed(word, offer) };
        }
    }

    /// Returns the offer of the rank `k` places after this rank. An offer is the distance from a
    /// rank's staging area to its result buffer, or 0 if the rank offers no buffer. Also returns 0
    /// if `k` is 0 or is not less than the number of ranks. A rank writes its offer before it
    /// raises its first flag. So this thread must have seen that flag.
    #[inline(always)]
    fn offer(&self, k: u32) -> u64 {
        if k == 0 || k >= self.call.ranks {
            return 0;
        }
        let word = pointer::<u64>(self.flags(self.call.areas[0], self.call.rank_after(k)) + OFFER);
        // SAFETY: the word is in this rank's area and is accessed only atomically.
        unsafe { <u64 as Access<Sys>>::load_relaxed(word) }
    }

    /// Raises one of this rank's two flags for round `round` on every other rank. If `at` is 0,
    /// raises the first flag: this block has pushed chunks of the input. If `at` is [`SECOND`],
    /// raises the second flag: this block has pushed reduced chunks.
    ///
    /// The flag becomes visible after all earlier accesses of the block's threads.
    #[inline(always)]
    fn raise(&self, round: u64, at: u64) {
        gpu::sync_threads();
        let (call, thread) = (self.call, gpu::thread_idx().x);
        if thread > 0 && thread < call.ranks {
            let flag = pointer::<u64>(self.flags(call.area_after(thread), call.rank) + at);
            // SAFETY: the word is in the area of a mapped peer and is accessed only atomically.
            unsafe { <u64 as Access<Sys>>::store_release(flag, self.before + round + 1) };
        }
    }

    /// Waits until every other rank has raised a flag for round `round`. If `at` is 0, waits for
    /// the first flag of each rank: the rank has pushed a chunk of its input to this block. If `at`
    /// is [`SECOND`], waits for the second flag of each rank: the rank has pushed a reduced chunk.
    #[inline(always)]
    fn wait(&self, round: u64, at: u64) -> Result<(), Failed> {
        let (call, thread) = (self.call, gpu::thread_idx().x);
        let polls = thread > 0 && thread < call.ranks;
        let flag = pointer::<u64>(self.flags(call.areas[0], call.rank_after(thread)) + at);
        let is_raised = || {
            // SAFETY: the word is in this rank's area and is accessed only atomically.
            let seen = unsafe { <u64 as Access<Sys>>::load_acquire(flag) };
            (seen.wrapping_sub(self.before + round + 1).cast_signed() >= 0).then_some(())
        };
        self.ctx.poll_block(KernelOp::AllReduce, polls, is_raised, || call.pe_after(thread))
    }
}

/// Runs the chunked kernel of all_reduce. The grid must have one dimension, and the staging areas
/// must have flags and rings for all its blocks.
#[inline(always)]
pub(super) fn run<T: Class, const W: usize, const PLAIN: bool>(ctx: &Context, call: &Call) -> Result<(), Failed> {
    if !call.begin() {
        return Ok(());
    }
    let counter = pointer::<u64>(call.counter).wrapping_add(gpu::block_idx().x as usize);
    // SAFETY: the launch guarantees the documented properties of the call's fields; the counter
    // belongs to this block.
    let (send, recv, before) = unsafe {
        (
            Operand::<PLAIN>::new(call.send, call.count),
            Operand::<PLAIN>::new(call.recv, call.count),
            <u64 as Access<Gpu>>::load_relaxed(counter),
        )
    };
    let (lines, ranks) = (send.lines::<T>(), u64::from(call.ranks));
    let part = lines.div_ceil(ranks);
    let slot_lines = call.bank_bytes / LINE_BYTES as u64 / ranks;
    // The kernel runs as few rounds as slots of this size allow. The lines of a part are divided
    // evenly among the rounds.
    let (blocks, number) = (u64::from(gpu::grid_dim().x), u64::from(gpu::block_idx().x));
    let most = part.div_ceil(blocks * slot_lines).max(1);
    let chunk = part.div_ceil(blocks * most).max(1);
    let block = Block::<PLAIN> { ctx, call, send, recv, lines, part, chunk, slot_lines, before };
    // All ranks have the same number of rounds, even a rank whose part is shorter.
    let rounds = part.div_ceil(chunk).saturating_sub(number).div_ceil(blocks);
    let copies = call.is_symmetric == 0 && call.has_results(0);
    if rounds > 0 {
        block.write_offer();
        block.push::<T>(0);
        block.raise(0, 0);
    }
    for round in 0..=rounds {
        if round + 1 < rounds {
            block.push::<T>(round + 1);
            block.raise(round + 1, 0);
        }
        if round < rounds {
            block.wait(round, 0)?;
            block.reduce::<T, W>(round);
            block.raise(round, SECOND);
        }
        if round > 0 {
            block.wait(round - 1, SECOND)?;
            if copies {
                block.copy::<T>(round - 1);
            }
        }
    }
    gpu::sync_threads();
    if gpu::thread_idx().x == 0 {
        // SAFETY: the launch guarantees the counter, which belongs to this block.
        unsafe { <u64 as Access<Gpu>>::store_relaxed(counter, before + rounds) };
    }
    Ok(())
}
