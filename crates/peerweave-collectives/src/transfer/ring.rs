//! Messages through a ring of slots for each block and sender, with flags; or straight into the
//! results.
//!
//! Block `b` of sender and receiver handles the same chunks of a message, one a round: chunk `b`,
//! and on from there by the number of blocks, so that all blocks work close together. Both count
//! rounds in words of the block that outlive the launch. The sender writes a chunk into a slot and
//! raises *ready* at the receiver; the receiver copies it to the result and raises *credit* at the
//! sender. Round `j` of a launch uses slot `j % 3`: the sender awaits the credit of round `j - 3`,
//! and before the first round that of all rounds of earlier launches.
//!
//! Blocks are pairs: one pushes, and the other copies what arrives and this rank's message to
//! itself, so that neither waits for the other. Where a result overwrites a message, one block does
//! both ([`Call::is_combined`]): it pushes a chunk before it copies the one that replaces it.
//!
//! Where the sender knows the receiver's result, there is one round, without a copy: the receiver
//! raises *open* when it has begun the call, and the sender then stores into the result.

use super::{Transfer, Transfers, operation};
use crate::copy::{each, load, one_by_one, store};
use crate::epoch::pointer;
use crate::line::{LINE_BYTES, Operand};
use crate::{Call, MAX_RANKS};
use peerweave_device::gpu::{Access, Gpu, Sys};
use peerweave_device::prelude::*;

/// Slots of a block for each sender.
const SLOTS: u64 = 3;
/// Bytes of the flags of one rank for one block: a line of its own for each kind.
const FLAG_BYTES: u64 = 512;
const READY: u64 = 0;
const CREDIT: u64 = 128;
const OPEN: u64 = 256;

/// Number of words of a block that count the rounds of a rank: of messages that it sends, then of
/// those that it receives.
pub const RING_COUNTERS: usize = 2 * MAX_RANKS;

/// Bytes of an area for so many blocks with slots of `slot_bytes`, which the ranks share: flags,
/// then rings.
pub const fn transfer_ring_bytes(blocks: u32, slot_bytes: u64) -> u64 {
    blocks as u64 * (MAX_RANKS as u64 * FLAG_BYTES + SLOTS * slot_bytes)
}

/// The lines of a message that this block handles.
#[derive(Clone, Copy)]
struct Message {
    operand: Operand<false>,
    lines: u64,
    /// Lines of a chunk.
    chunk: u64,
    /// The first chunk of this block, and the distance to the next.
    first: u64,
    step: u64,
    /// All chunks are handled in the first round.
    at_once: bool,
}

impl Message {
    /// The first line and the number of lines of a chunk of this block; none behind the last.
    #[inline(always)]
    fn range(&self, index: u64) -> (u64, u64) {
        let line = (self.first + index * self.step) * self.chunk;
        (line, self.lines.saturating_sub(line).min(self.chunk))
    }

    /// Returns whether there are chunks for a round.
    #[inline(always)]
    fn has(&self, round: u64) -> bool {
        (round == 0 || !self.at_once) && self.range(round).1 > 0
    }

    /// Calls `with` with the ranges of a round.
    #[inline(always)]
    fn each_range(&self, round: u64, with: impl Fn(u64, u64)) {
        let mut index = round;
        while self.has(round) {
            let (line, n) = self.range(index);
            if n == 0 {
                break;
            }
            with(line, n);
            index += 1;
            if !self.at_once {
                break;
            }
        }
    }
}

/// A block of a launch.
struct Block<'a> {
    call: &'a Call,
    transfers: &'a Transfers,
    /// The number of this block, or of its pair.
    index: u64,
    /// Lines that a slot has for each rank.
    slot_lines: u64,
}

impl Block<'_> {
    /// # Safety
    /// As for [`Operand::new`], with `bytes` elements.
    #[inline(always)]
    unsafe fn message(&self, address: u64, bytes: u64, chunk: u64, at_once: bool) -> Message {
        // SAFETY: the caller promises the bytes.
        let operand = unsafe { Operand::new(address, bytes) };
        let (lines, step) = (bytes.div_ceil(LINE_BYTES as u64), u64::from(self.call.max_blocks));
        Message { operand, lines, chunk, first: self.index, step, at_once }
    }

    /// The message to the rank `k` places behind.
    #[inline(always)]
    fn sent(&self, peer: &Transfer, k: u32) -> Message {
        let is_direct = peer.remote != 0 || k == 0 && peer.is_direct != 0;
        // SAFETY: the launch promises the messages.
        unsafe { self.message(peer.send, peer.send_bytes, peer.send_chunk, is_direct) }
    }

    /// The message from the rank `k` places behind; none from this rank.
    #[inline(always)]
    fn received(&self, peer: &Transfer, k: u32) -> Message {
        let bytes = if k == 0 { 0 } else { peer.recv_bytes };
        // SAFETY: as above.
        unsafe { self.message(peer.recv, bytes, peer.recv_chunk, peer.is_direct != 0) }
    }

    /// A flag that rank `rank` raises for this block, in the area at `area`.
    #[inline(always)]
    fn flag(&self, area: u64, rank: u32, at: u64) -> *mut u64 {
        let index = self.index * MAX_RANKS as u64 + u64::from(rank);
        pointer(area + index * FLAG_BYTES + at)
    }

    /// The address of a chunk from rank `rank`, in the area at `area`.
    #[inline(always)]
    fn slot(&self, area: u64, round: u64, rank: u32) -> u64 {
        let slot = self.index * SLOTS + round % SLOTS;
        let rings = area + u64::from(self.call.max_blocks) * MAX_RANKS as u64 * FLAG_BYTES;
        rings + slot * self.call.bank_bytes + u64::from(rank) * self.slot_lines * LINE_BYTES as u64
    }

    /// Returns whether any message to another rank, and any from one, has a round.
    #[inline(always)]
    fn has(&self, round: u64) -> (bool, bool) {
        let (mut sends, mut receives) = (false, false);
        for k in 1..self.call.ranks {
            let peer = self.transfers.behind(k);
            sends |= self.sent(&peer, k).has(round);
            receives |= self.received(&peer, k).has(round);
        }
        (sends, receives)
    }

    /// Pushes a round of all messages to other ranks.
    #[inline(always)]
    fn push(&self, round: u64) {
        let call = self.call;
        for k in 1..call.ranks {
            let peer = self.transfers.behind(k);
            let message = self.sent(&peer, k);
            let slot = self.slot(call.area_behind(k), round, call.rank);
            message.each_range(round, |line, n| {
                let to = if peer.remote != 0 { peer.remote + line * LINE_BYTES as u64 } else { slot };
                // SAFETY: the slot, or the result of a rank that has begun the call, has the lines,
                // and is this rank's to write now.
                let store = |index, value| unsafe { store(to, index, value) };
                let from = message.operand;
                if from.is_whole::<u8>(line, n) {
                    each(n, |index| from.read_whole(line + index), store);
                } else {
                    one_by_one(n, |index| from.read::<u8>(line + index), store);
                }
            });
        }
    }

    /// Copies a round of this rank's message to itself.
    #[inline(always)]
    fn copy_own(&self, round: u64) {
        let peer = &self.transfers.peers[0];
        let message = self.sent(peer, 0);
        let from = message.operand;
        // SAFETY: as above; the message of a rank to itself has its place in `recv`.
        let to = unsafe { Operand::<false>::new(peer.recv, peer.send_bytes) };
        message.each_range(round, |line, n| {
            if from.is_whole::<u8>(line, n) && to.is_whole::<u8>(line, n) {
                each(n, |index| from.read_whole(line + index), |index, value| to.write_whole(line + index, value));
            } else {
                one_by_one(n, |index| from.read::<u8>(line + index), |index, value| to.write::<u8>(line + index, value));
            }
        });
    }

    /// Copies a round of all messages that came through the ring.
    #[inline(always)]
    fn copy(&self, round: u64) {
        let call = self.call;
        for k in 1..call.ranks {
            let peer = self.transfers.behind(k);
            let message = self.received(&peer, k);
            let (line, n) = message.range(round);
            if peer.is_direct != 0 {
                continue;
            }
            let from = self.slot(call.areas[0], round, call.rank_behind(k));
            // SAFETY: as in `push`; the flag of the rank was seen.
            let load = |index| unsafe { load(from, index) };
            let to = message.operand;
            if to.is_whole::<u8>(line, n) {
                each(n, load, |index, value| to.write_whole(line + index, value));
            } else {
                one_by_one(n, load, |index, value| to.write::<u8>(line + index, value));
            }
        }
    }
}

/// The value of a flag.
///
/// # Safety
/// The pointer is that of a flag of this rank's area.
#[inline(always)]
unsafe fn seen(flag: *mut u64) -> u64 {
    // SAFETY: a word that is accessed atomically alone.
    unsafe { <u64 as Access<Sys>>::load_acquire(flag) }
}

/// Messages among up to 8 ranks through rings. The grid has one dimension, and
/// [`Call::max_blocks`] pairs of blocks, or as many blocks if [`Call::is_combined`] is 1.
#[kernel(max_threads = 512, unchecked)]
pub fn transfer_ring_8(ctx: &Context, call: Call, transfers: Transfers) -> Result<(), Failed> {
    gpu::start_next_kernel();
    let is_call = call.areas[0] != 0 && call.counter != 0 && transfers.has_any::<true>();
    gpu::wait_for_previous_kernel();
    if !is_call {
        return Ok(());
    }
    // Of a pair, the first block pushes.
    let is_pair = call.is_combined == 0;
    let number = gpu::block_idx().x;
    let index = u64::from(if is_pair { number / 2 } else { number });
    let (pushes, copies) = (!is_pair || number & 1 == 0, !is_pair || number & 1 != 0);
    let slot_lines = call.bank_bytes / LINE_BYTES as u64 / u64::from(call.ranks);
    let block = Block { call: &call, transfers: &transfers, index, slot_lines };
    let operation = operation(call.op);
    // Thread `k` handles the flags of the rank `k` places behind.
    let k = gpu::thread_idx().x;
    let has_peer = k > 0 && k < call.ranks;
    let peer = transfers.behind(if has_peer { k } else { 0 });
    let (rank, area) = (call.rank_behind(if has_peer { k } else { 0 }), call.area_behind(if has_peer { k } else { 0 }));
    let sends = |round| has_peer && block.sent(&peer, k).has(round);
    let receives = |round| has_peer && block.received(&peer, k).has(round);
    let own = |at| block.flag(call.areas[0], rank, at);
    let counter = |of: usize| pointer::<u64>(call.counter).wrapping_add(index as usize * RING_COUNTERS + of);
    let raise = |at, value| {
        let flag = block.flag(area, call.rank, at);
        // SAFETY: a word of the area of a mapped peer, which is accessed atomically alone.
        unsafe { <u64 as Access<Sys>>::store_release(flag, value) };
    };
    let is_reached = |value: u64, wanted: u64| (value.wrapping_sub(wanted).cast_signed() >= 0).then_some(());
    let (mut sent, mut received) = (0, 0);
    if has_peer {
        // SAFETY: the launch promises the counters, which are this block's.
        unsafe {
            sent = <u64 as Access<Gpu>>::load_relaxed(counter(k as usize));
            received = <u64 as Access<Gpu>>::load_relaxed(counter(MAX_RANKS + k as usize));
        }
        if copies && peer.is_direct != 0 && receives(0) {
            raise(OPEN, received + 1);
        }
    }
    // Rounds of this launch.
    let (mut pushed, mut copied) = (0, 0);
    let mut round = 0;
    loop {
        let (any_sent, any_received) = block.has(round);
        let any_arrives = copies && round > 0 && block.has(round - 1).1;
        let any_sent = pushes && any_sent;
        let any_copied = copies && (any_received || block.sent(&transfers.peers[0], 0).has(round));
        if !(any_sent || any_copied || any_arrives) {
            break;
        }
        if any_sent {
            let (flag, wanted) =
                if peer.remote != 0 { (own(OPEN), sent + 1) } else { (own(CREDIT), sent + (round + 1).saturating_sub(SLOTS)) };
            // SAFETY: a flag of this rank's area.
            let has_room = || is_reached(unsafe { seen(flag) }, wanted);
            ctx.poll_block(operation, sends(round), has_room, || call.pe_behind(k))?;
            block.push(round);
            gpu::sync_threads();
            if sends(round) {
                pushed += 1;
                raise(READY, sent + pushed);
            }
        }
        if any_arrives {
            let flag = own(READY);
            // SAFETY: as above.
            let is_ready = || is_reached(unsafe { seen(flag) }, received + round);
            ctx.poll_block(operation, receives(round - 1), is_ready, || call.pe_behind(k))?;
            block.copy(round - 1);
            gpu::sync_threads();
            if receives(round - 1) {
                copied += 1;
                raise(CREDIT, received + copied);
            }
        }
        if copies {
            block.copy_own(round);
        }
        round += 1;
    }
    // SAFETY: as above; the block of a pair that pushes counts what it sends, and the other the
    // rest.
    unsafe {
        if has_peer && pushes {
            <u64 as Access<Gpu>>::store_relaxed(counter(k as usize), sent + pushed);
        }
        if has_peer && copies {
            <u64 as Access<Gpu>>::store_relaxed(counter(MAX_RANKS + k as usize), received + copied);
        }
    }
    Ok(())
}
