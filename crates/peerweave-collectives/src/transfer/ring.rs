//! Messages through a ring of slots for each block and sender, with flags; or straight into the
//! results.
//!
//! Block `b` of sender and receiver handles the same chunks of a message, one chunk in each round:
//! first chunk `b`, then every chunk that follows at a distance of the number of blocks. So all
//! blocks work on neighbouring chunks. Both ranks count rounds in words of the block that outlive
//! the launch. The sender writes a chunk into a slot and raises the flag *ready* at the receiver.
//! The receiver copies the chunk to the result and raises the flag *credit* at the sender. Round
//! `j` of a launch uses slot `j % 3`: the sender waits for the credit of round `j - 3`, and before
//! the first round for the credit of all rounds of earlier launches.
//!
//! Blocks work in pairs: one block pushes, the other copies arriving chunks and this rank's message
//! to itself, so that neither waits for the other. If a result overwrites a message, one block does
//! both ([`Call::is_combined`]): it pushes a chunk before it copies the chunk that replaces it.
//!
//! A receiver whose result is mapped on the sender can have a message stored directly there, in one
//! round and without a copy. Before it raises the flag *open*, it writes the *offer*: the distance
//! of its result from its area, or 0 for a message through the ring. The sender waits for that flag
//! and reads the offer before it raises *ready* for the first time; the receiver writes the next
//! offer only after that.

use super::{Transfer, Transfers, operation};
use crate::copy::{each, load, one_by_one, store};
use crate::epoch::pointer;
use crate::line::{LINE_BYTES, Operand};
use crate::{Call, MAX_RANKS};
use core::cell::Cell;
use peerweave_device::gpu::{Access, Gpu, Sys};
use peerweave_device::prelude::*;

/// Number of slots of a block for each sender.
const SLOTS: u64 = 3;
/// Size in bytes of the flags of one rank for one block: each kind of flag has its own cache line.
const FLAG_BYTES: u64 = 512;
const READY: u64 = 0;
const CREDIT: u64 = 128;
const OPEN: u64 = 256;
/// In the cache line of the flag *open*.
const OFFER: u64 = 264;

/// Number of words by which a block counts rounds: one for each receiver, then one for each sender.
pub const RING_COUNTERS: usize = 2 * MAX_RANKS;

/// Returns the size in bytes of an area for `blocks` blocks: flags, then rings. The ranks share a
/// slot's `slot_bytes` bytes.
pub const fn transfer_ring_bytes(blocks: u32, slot_bytes: u64) -> u64 {
    blocks as u64 * (MAX_RANKS as u64 * FLAG_BYTES + SLOTS * slot_bytes)
}

/// The lines of a message that this block handles.
#[derive(Clone, Copy)]
struct Message {
    operand: Operand<false>,
    lines: u64,
    /// Number of lines of a chunk.
    chunk: u64,
    /// Number of this block's first chunk, then the distance to its next chunk.
    first: u64,
    step: u64,
    /// Whether all chunks are handled in the first round.
    at_once: bool,
}

impl Message {
    /// Returns the first line and the number of lines of a chunk of this block; no lines behind the
    /// last chunk.
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

/// State of a block in a launch.
struct Block<'a> {
    call: &'a Call,
    transfers: &'a Transfers,
    /// Number of this block, or number of its pair of blocks.
    index: u64,
    /// Number of lines for which a slot has room for each rank.
    slot_lines: u64,
    /// One bit for each message to a rank whose receiver has offered its result.
    accepted: Cell<u32>,
}

impl Block<'_> {
    /// # Safety
    /// As for [`Operand::new`], with `bytes` elements.
    #[inline(always)]
    unsafe fn message(&self, address: u64, bytes: u64, chunk: u64, at_once: bool) -> Message {
        // SAFETY: the caller guarantees the bytes.
        let operand = unsafe { Operand::new(address, bytes) };
        let (lines, step) = (bytes.div_ceil(LINE_BYTES as u64), u64::from(self.call.max_blocks));
        Message { operand, lines, chunk, first: self.index, step, at_once }
    }

    /// Returns the message to the rank `k` places behind this rank.
    #[inline(always)]
    fn sent(&self, peer: &Transfer, k: u32) -> Message {
        let is_direct = self.accepted.get() >> k & 1 != 0 || k == 0 && peer.is_direct != 0;
        // SAFETY: the launch guarantees the messages.
        unsafe { self.message(peer.send, peer.send_bytes, peer.send_chunk, is_direct) }
    }

    /// Returns the message from the rank `k` places behind this rank; empty for this rank itself.
    #[inline(always)]
    fn received(&self, peer: &Transfer, k: u32) -> Message {
        let bytes = if k == 0 { 0 } else { peer.recv_bytes };
        // SAFETY: as above.
        unsafe { self.message(peer.recv, bytes, peer.recv_chunk, peer.is_direct != 0) }
    }

    /// Returns the flag that rank `rank` raises for this block, in the area at `area`.
    #[inline(always)]
    fn flag(&self, area: u64, rank: u32, at: u64) -> *mut u64 {
        let index = self.index * MAX_RANKS as u64 + u64::from(rank);
        pointer(area + index * FLAG_BYTES + at)
    }

    /// Returns the offer of the rank `k` places behind this rank, for this block.
    #[inline(always)]
    fn offer(&self, k: u32) -> u64 {
        let word = self.flag(self.call.areas[0], self.call.rank_behind(k), OFFER);
        // SAFETY: a word of this rank's area, which is accessed only atomically.
        unsafe { <u64 as Access<Sys>>::load_relaxed(word) }
    }

    /// Accepts the offers of all ranks whose flag *open* this block has seen. Offers of others
    /// belong to messages of which this block has no chunk.
    #[inline(always)]
    fn accept_offers(&self) {
        let mut accepted = 0;
        for k in 1..self.call.ranks {
            let is_offered = self.transfers.field(k, |peer| peer.send_is_offered) != 0;
            accepted |= u32::from(is_offered && self.offer(k) != 0) << k;
        }
        self.accepted.set(accepted);
    }

    /// Returns the address of a chunk from rank `rank`, in the area at `area`.
    #[inline(always)]
    fn slot(&self, area: u64, round: u64, rank: u32) -> u64 {
        let slot = self.index * SLOTS + round % SLOTS;
        let rings = area + u64::from(self.call.max_blocks) * MAX_RANKS as u64 * FLAG_BYTES;
        rings + slot * self.call.bank_bytes + u64::from(rank) * self.slot_lines * LINE_BYTES as u64
    }

    /// Returns whether any message to another rank has this round, and whether any message from
    /// another rank has it.
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
            let is_accepted = self.accepted.get() >> k & 1 != 0;
            let result = if is_accepted { call.area_behind(k).wrapping_add(self.offer(k)) } else { 0 };
            message.each_range(round, |line, n| {
                let to = if is_accepted { result + line * LINE_BYTES as u64 } else { slot };
                // SAFETY: the line is in a slot that only this rank may write now, or in the result
                // of a rank that has begun the call and has offered it to this rank.
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
        // SAFETY: as above; `recv` has room for the message of the rank to itself.
        let to = unsafe { Operand::<false>::new(peer.recv, peer.send_bytes) };
        message.each_range(round, |line, n| {
            if from.is_whole::<u8>(line, n) && to.is_whole::<u8>(line, n) {
                each(n, |index| from.read_whole(line + index), |index, value| to.write_whole(line + index, value));
            } else {
                one_by_one(n, |index| from.read::<u8>(line + index), |index, value| to.write::<u8>(line + index, value));
            }
        });
    }

    /// Copies a round of all messages that arrive through the ring.
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
            // SAFETY: as in `push`; this thread has seen the flag of the rank.
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

/// Returns the value of a flag.
///
/// # Safety
/// The pointer points to a flag of this rank's area.
#[inline(always)]
unsafe fn seen(flag: *mut u64) -> u64 {
    // SAFETY: the word is accessed only atomically.
    unsafe { <u64 as Access<Sys>>::load_acquire(flag) }
}

/// Sends and receives messages among up to 8 ranks through rings. The grid has one dimension. It
/// has [`Call::max_blocks`] blocks if [`Call::is_combined`] is 1, otherwise this number of pairs of
/// blocks.
#[kernel(max_threads = 512, unchecked, ptx = crate::PTX)]
pub fn transfer_ring_8(ctx: &Context, call: Call, transfers: Transfers) -> Result<(), Failed> {
    gpu::start_next_kernel();
    let is_call = call.areas[0] != 0 && call.counter != 0 && transfers.has_any::<true>();
    gpu::wait_for_previous_kernel();
    if !is_call {
        return Ok(());
    }
    // The first block of a pair pushes.
    let is_pair = call.is_combined == 0;
    let number = gpu::block_idx().x;
    let index = u64::from(if is_pair { number / 2 } else { number });
    let (pushes, copies) = (!is_pair || number & 1 == 0, !is_pair || number & 1 != 0);
    let slot_lines = call.bank_bytes / LINE_BYTES as u64 / u64::from(call.ranks);
    let block = Block { call: &call, transfers: &transfers, index, slot_lines, accepted: Cell::new(0) };
    let operation = operation(call.op);
    // Thread `k` handles the flags of the rank `k` places behind this rank.
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
        // SAFETY: a word of the area of a mapped peer, which is accessed only atomically.
        unsafe { <u64 as Access<Sys>>::store_release(flag, value) };
    };
    let is_reached = |value: u64, wanted: u64| (value.wrapping_sub(wanted).cast_signed() >= 0).then_some(());
    let (mut sent, mut received) = (0, 0);
    if has_peer {
        // SAFETY: the launch guarantees the counters, which belong to this block.
        unsafe {
            sent = <u64 as Access<Gpu>>::load_relaxed(counter(k as usize));
            received = <u64 as Access<Gpu>>::load_relaxed(counter(MAX_RANKS + k as usize));
        }
        if copies && peer.recv_is_offered != 0 && receives(0) {
            let offer = if peer.is_direct != 0 { peer.recv.wrapping_sub(call.areas[0]) } else { 0 };
            // SAFETY: a word of the area of a mapped peer, which is accessed only atomically.
            unsafe { <u64 as Access<Sys>>::store_relaxed(block.flag(area, call.rank, OFFER), offer) };
            raise(OPEN, received + 1);
        }
    }
    // Number of rounds of this launch that were pushed and copied.
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
            // A receiver that has begun the call has copied all earlier messages.
            let is_open = round == 0 && peer.send_is_offered != 0;
            let (flag, wanted) =
                if is_open { (own(OPEN), sent + 1) } else { (own(CREDIT), sent + (round + 1).saturating_sub(SLOTS)) };
            // SAFETY: a flag of this rank's area.
            let has_room = || is_reached(unsafe { seen(flag) }, wanted);
            ctx.poll_block(operation, sends(round), has_room, || call.pe_behind(k))?;
            if round == 0 {
                block.accept_offers();
            }
            let is_sent = sends(round);
            block.push(round);
            gpu::sync_threads();
            if is_sent {
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
    // SAFETY: as above; in a pair, the block that pushes writes the counters of sent rounds, and
    // the other block writes the other counters.
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
