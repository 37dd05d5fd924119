//! Messages that travel in chunks through rings of slots. Each block of the receiver has a ring for
//! each sender. If possible, the sender instead stores a message directly in the receiver's result
//! buffer.
//!
//! Block `b` of the sender and block `b` of the receiver handle the same chunks of a message, one
//! chunk in each round. With `n` blocks these are the chunks `b`, `b + n`, `b + 2n` and so on. So
//! all blocks work on neighbouring chunks at the same time. The sender and the receiver count the
//! rounds of each block in words that outlive the launch.
//!
//! The blocks of the sender and of the receiver signal each other by four flags:
//!
//! | flag | raised by | meaning |
//! |---|---|---|
//! | *ready* | sender | a chunk is in its slot, or the first block of a pair has stored its lines of a message |
//! | *credit* | receiver | a chunk is in the result, so its slot is free |
//! | *open* | receiver | the receiver has written an offer, which is explained below |
//! | *second* | sender | the second block of a pair has stored its lines of a message |
//!
//! # Chunks in slots
//! The sender writes a chunk into a slot, and raises *ready*. The receiver copies the chunk to the
//! result, and raises *credit*. Round `j` of a launch uses slot `j % 3`. Before the sender writes
//! the chunk of round `j`, it waits for the credit of round `j - 3`. Before the first round, the
//! sender waits for the credit of all rounds of earlier launches.
//!
//! # Pairs of blocks
//! Usually, blocks work in pairs. The first block of a pair pushes chunks. The second block copies
//! the chunks that arrive, and the message that this rank sends to itself. So the two blocks do not
//! wait for each other.
//!
//! If a result overwrites a message, blocks do not work in pairs ([`Call::is_combined`]). Each
//! block pushes a chunk of the message first, and later copies an arriving chunk over the pushed
//! chunk.
//!
//! # Direct stores
//! The sender can store a message directly in the receiver's result buffer if the sender has mapped
//! this buffer. The message then needs only one round and no copy. The receiver writes the *offer*:
//! the distance from the receiver's staging area to the result buffer, or 0 for a message through
//! the ring. Then the receiver raises *open*. The sender waits for *open* and reads the offer
//! before it raises *ready* for the first time. The receiver writes the next offer only after it
//! has seen *ready*.
//!
//! A message that is stored directly needs no slots. So the sender's blocks divide the message
//! evenly, line by line.
//!
//! A rank that offers all its result buffers has no chunks to copy. On such a rank, both blocks of
//! a pair push. The second block first copies the message that this rank sends to itself. For each
//! message with [`Transfer::send_is_offered`], the first block raises *ready* and the second block
//! raises *second*. If the second blocks do not push, the first block raises both flags. So the
//! receiver need not know which blocks push. A second block with chunks to copy must not wait for
//! another rank's offer, because that rank may wait for these copies.

use super::{Transfer, Transfers, operation};
use crate::epoch::pointer;
use crate::line::copy::{Share, each, each_of_share, load, one_by_one, one_by_one_of_share, store};
use crate::line::{LINE_BYTES, Operand};
use crate::{Call, MAX_RANKS};
use core::cell::Cell;
use peerweave_device::gpu::{Access, Gpu, Sys};
use peerweave_device::prelude::*;

/// Number of slots in a ring. Each block of a receiver has one ring for each sender.
const SLOTS: u64 = 3;
/// Size in bytes of a set of four flags: *ready*, *credit*, *open* and *second*. Each flag has its
/// own cache line. A staging area has one set for each pair of blocks (or single block) and each
/// rank. That rank raises the flags to notify the block or pair.
const FLAG_BYTES: u64 = 512;
const READY: u64 = 0;
const CREDIT: u64 = 128;
const OPEN: u64 = 256;
/// Offset in bytes of a rank's offer in that rank's set of flags. The offer is the distance from
/// the rank's staging area to its result buffer, or 0 for a refusal. The flag *open* is in the same
/// cache line, and shows that the offer has been written.
const OFFER: u64 = 264;
const SECOND: u64 = 384;

/// For messages through rings: number of 64-bit counters of one pair of blocks, or of one block if
/// blocks do not work in pairs. Each pair or block has five counters for each rank.
pub const RING_COUNTERS: usize = 5 * MAX_RANKS;

/// Selects a count of rounds or messages. A pair of blocks keeps such counts for each rank, in
/// device memory that outlives the launch. The first block of a pair pushes messages, and the
/// second block copies arriving chunks. Each count belongs to one of the two blocks: only that
/// block uses and writes the count.
#[derive(Clone, Copy)]
enum Count {
    /// For one receiving rank: number of rounds in which the first block of the pair has pushed
    /// lines to that rank. The first block keeps this count.
    Sent,
    /// For one sending rank: number of rounds in which the second block of the pair has received
    /// lines from that rank. The second block keeps this count.
    Received,
    /// For one receiving rank: number of messages to that rank for which
    /// [`Transfer::send_is_offered`] was 1. The first block of the pair keeps this count.
    FirstOffers,
    /// The same number as [`Self::FirstOffers`], counted separately by the second block of the
    /// pair.
    SecondOffers,
    /// For one sending rank: number of messages from that rank for which
    /// [`Transfer::recv_is_offered`] was 1. The second block of the pair keeps this count.
    OffersHere,
}

/// Returns the size in bytes of a staging area for messages through rings: the size of all flags
/// and slots. `blocks` is the number of blocks, or the number of pairs if blocks work in pairs.
/// Each slot has `slot_bytes` bytes, which are divided among the ranks.
pub const fn transfer_ring_bytes(blocks: u32, slot_bytes: u64) -> u64 {
    blocks as u64 * (MAX_RANKS as u64 * FLAG_BYTES + SLOTS * slot_bytes)
}

/// A message, and the chunks of the message that this block handles.
#[derive(Clone, Copy)]
struct Message<const WHOLE: bool> {
    operand: Operand<WHOLE>,
    lines: u64,
    /// Number of 16-byte lines in a chunk.
    chunk: u64,
    /// Index of the first chunk that this block handles. Chunk 0 is the start of the message.
    first: u64,
    /// Difference between the numbers of two successive chunks of this block. Other blocks handle
    /// the chunks between these two.
    step: u64,
    /// Whether the sender stores the message directly in the receiver's result, instead of in slots
    /// of a ring. If so, the first round transfers the whole message.
    at_once: bool,
}

impl<const WHOLE: bool> Message<WHOLE> {
    /// Returns the first line and the number of lines of the chunk that this block handles in round
    /// `index`. The number of lines is 0 after the last chunk.
    #[inline(always)]
    fn range(&self, index: u64) -> (u64, u64) {
        let line = (self.first + index * self.step) * self.chunk;
        (line, self.lines.saturating_sub(line).min(self.chunk))
    }

    /// Returns whether this block has any lines of the message to handle in round `round`.
    #[inline(always)]
    fn has(&self, round: u64) -> bool {
        (round == 0 || !self.at_once) && self.range(round).1 > 0
    }

    /// Returns the number of blocks, or of pairs of blocks, that handle at least one chunk of the
    /// message.
    #[inline(always)]
    fn blocks(&self) -> u64 {
        self.lines.div_ceil(self.chunk.max(1)).min(self.step)
    }
}

/// The state of one block in a launch with up to `W` ranks.
struct Block<'a, const W: usize, const WHOLE: bool> {
    call: &'a Call,
    transfers: &'a Transfers,
    /// Index of this block, or of its pair if the blocks work in pairs.
    index: u64,
    /// If both blocks of the pair push lines: 0 for the first block, and 1 for the second block.
    /// Otherwise 0.
    half: u64,
    /// Number of blocks in each pair that push lines of messages: 2 if both blocks push, 1 if only
    /// the first block pushes. Always 1 if blocks do not work in pairs.
    halves: u64,
    /// Each slot has one section for each rank. Length of a section in 16-byte lines.
    slot_lines: u64,
    /// One bit for each rank: bit `k` is for the rank `k` places after this rank. The bit is 1 if
    /// this rank stores its message directly in the result buffer of that rank, because that rank
    /// has offered the buffer.
    accepted: Cell<u32>,
}

impl<const W: usize, const WHOLE: bool> Block<'_, W, WHOLE> {
    /// Describes a message for this block. The message has `bytes` bytes, starts at `address`, and
    /// is divided into chunks of `chunk` lines. If `at_once` is true, the message is stored
    /// directly in the result, in one round.
    ///
    /// # Safety
    /// As for [`Operand::new`]: this thread can access the `bytes` bytes at `address` while the
    /// kernel runs. If `WHOLE` is true, `address` and `bytes` are multiples of [`LINE_BYTES`].
    #[inline(always)]
    unsafe fn message(&self, address: u64, bytes: u64, chunk: u64, at_once: bool) -> Message<WHOLE> {
        // SAFETY: the caller guarantees the bytes.
        let operand = unsafe { Operand::new(address, bytes) };
        let (lines, step) = (bytes.div_ceil(LINE_BYTES as u64), u64::from(self.call.max_blocks));
        Message { operand, lines, chunk, first: self.index, step, at_once }
    }

    /// Returns the number of ranks that loops over ranks handle. This is the number of ranks of the
    /// call, except if `W`, the maximum number of ranks, is 2. The result is then the constant 2,
    /// so that the compiler unrolls the loops. If the call has only one rank, the messages of the
    /// second rank are empty.
    #[inline(always)]
    fn ranks(&self) -> u32 {
        if W == 2 { 2 } else { self.call.ranks }
    }

    /// Returns the message that this rank sends to the rank `k` places after this rank. `peer` is
    /// the element of [`Transfers::peers`] for that rank.
    #[inline(always)]
    fn sent(&self, peer: &Transfer, k: u32) -> Message<WHOLE> {
        let is_direct = self.accepted.get() >> k & 1 != 0 || k == 0 && peer.is_direct != 0;
        // SAFETY: the launch guarantees the messages.
        unsafe { self.message(peer.send, peer.send_bytes, peer.send_chunk, is_direct) }
    }

    /// Returns the message that this rank receives from the rank `k` places after this rank. `peer`
    /// is the element of [`Transfers::peers`] for that rank. If `k` is 0, returns an empty message.
    #[inline(always)]
    fn received(&self, peer: &Transfer, k: u32) -> Message<WHOLE> {
        let bytes = if k == 0 { 0 } else { peer.recv_bytes };
        // SAFETY: the launch guarantees the messages.
        unsafe { self.message(peer.recv, bytes, peer.recv_chunk, peer.is_direct != 0) }
    }

    /// Returns this block's share of a message that is stored directly. [`Message::blocks`] blocks,
    /// or pairs of blocks, divide the lines of the message evenly. This block, or its pair, must be
    /// one of them: its index must be below [`Message::blocks`].
    #[inline(always)]
    fn share(&self, message: &Message<WHOLE>) -> Share {
        Share { index: self.index * self.halves + self.half, of: message.blocks() * self.halves }
    }

    /// Returns a pointer to a flag that rank `rank` raises for this block. `area` is the address of
    /// the staging area that contains the flag. `at` is the offset of the flag among the flags of
    /// that rank.
    #[inline(always)]
    fn flag(&self, area: u64, rank: u32, at: u64) -> *mut u64 {
        let index = self.index * MAX_RANKS as u64 + u64::from(rank);
        pointer(area + index * FLAG_BYTES + at)
    }

    /// Returns the offer that the rank `k` places after this rank has written for this block: the
    /// distance of that rank's result buffer from its staging area, or 0 for no offer.
    #[inline(always)]
    fn offer(&self, k: u32) -> u64 {
        let word = self.flag(self.call.areas[0], self.call.rank_after(k), OFFER);
        // SAFETY: the word is in this rank's area and is accessed only atomically.
        unsafe { <u64 as Access<Sys>>::load_relaxed(word) }
    }

    /// Reads the receivers' offers, and sets [`Self::accepted`]. An offer lets this rank store a
    /// message directly in the receiver's result buffer. Uses only the offers for messages with
    /// [`Transfer::send_is_offered`]. This block must have seen the flag *open* of these receivers,
    /// because a receiver writes its offer before it raises that flag.
    #[inline(always)]
    fn accept_offers(&self) {
        let mut accepted = 0;
        for k in 1..self.ranks() {
            let is_offered = self.transfers.field_of::<W>(k, |peer| peer.send_is_offered) != 0;
            accepted |= u32::from(is_offered && self.offer(k) != 0) << k;
        }
        self.accepted.set(accepted);
    }

    /// Returns the address at which a chunk is stored in the receiver's staging area. Rank `rank`
    /// sends the chunk to this block in round `round`. `area` is the address of the staging area.
    #[inline(always)]
    fn slot(&self, area: u64, round: u64, rank: u32) -> u64 {
        let slot = self.index * SLOTS + round % SLOTS;
        let rings = area + u64::from(self.call.max_blocks) * MAX_RANKS as u64 * FLAG_BYTES;
        rings + slot * self.call.bank_bytes + u64::from(rank) * self.slot_lines * LINE_BYTES as u64
    }

    /// Returns whether this block sends lines to another rank in round `round`, and whether this
    /// block receives lines from another rank in round `round`.
    #[inline(always)]
    fn has(&self, round: u64) -> (bool, bool) {
        let (mut sends, mut receives) = (false, false);
        for k in 1..self.ranks() {
            let peer = self.transfers.of_peer::<W>(k);
            sends |= self.sent(&peer, k).has(round);
            receives |= self.received(&peer, k).has(round);
        }
        (sends, receives)
    }

    /// Pushes this block's chunks of round `round` to the other ranks: one chunk of each message
    /// that is sent through a ring.
    #[inline(always)]
    fn push(&self, round: u64) {
        let call = self.call;
        for k in 1..self.ranks() {
            let peer = self.transfers.of_peer::<W>(k);
            let message = self.sent(&peer, k);
            if message.at_once || !message.has(round) {
                continue;
            }
            let (line, n) = message.range(round);
            let to = self.slot(call.area_of::<W>(k), round, call.rank);
            // SAFETY: the line is in a slot that only this rank may write now.
            let store = |index, value| unsafe { store(to, index, value) };
            let from = message.operand;
            if from.is_whole::<u8>(line, n) {
                each(n, |index| from.read_whole(line + index), store);
            } else {
                one_by_one(n, |index| from.read::<u8>(line + index), store);
            }
        }
    }

    /// Stores messages directly in the result buffers of the ranks that have offered these buffers.
    /// Each block stores its share of the lines of each message.
    #[inline(always)]
    fn store_direct(&self) {
        let call = self.call;
        for k in 1..self.ranks() {
            let peer = self.transfers.of_peer::<W>(k);
            let message = self.sent(&peer, k);
            if !(message.at_once && message.has(0)) {
                continue;
            }
            let to = call.area_of::<W>(k).wrapping_add(self.offer(k));
            // SAFETY: the line is in the result of a rank that has begun the call and has offered
            // that result to this rank.
            let store = |line, value| unsafe { store(to, line, value) };
            let (from, share) = (message.operand, self.share(&message));
            if from.is_whole::<u8>(0, message.lines) {
                each_of_share(share, message.lines, |line| from.read_whole(line), store);
            } else {
                one_by_one_of_share(share, message.lines, |line| from.read::<u8>(line), store);
            }
        }
    }

    /// Copies this block's chunk for round `round` of the message that this rank sends to itself.
    /// If the message is not divided into chunks, copies this block's share of all lines in the
    /// first round, and nothing in later rounds.
    #[inline(always)]
    fn copy_own(&self, round: u64) {
        let peer = &self.transfers.peers[0];
        let message = self.sent(peer, 0);
        if !message.has(round) {
            return;
        }
        let from = message.operand;
        // SAFETY: the launch guarantees room for the message of the rank to itself.
        let to = unsafe { Operand::<WHOLE>::new(peer.recv, peer.send_bytes) };
        let at_once = message.at_once;
        let (line, n) = if at_once { (0, message.lines) } else { message.range(round) };
        let share = if at_once { Share { index: self.index, of: message.blocks() } } else { Share::ALL };
        if from.is_whole::<u8>(line, n) && to.is_whole::<u8>(line, n) {
            each_of_share(share, n, |index| from.read_whole(line + index), |index, value| to.write_whole(line + index, value));
        } else {
            one_by_one_of_share(
                share,
                n,
                |index| from.read::<u8>(line + index),
                |index, value| to.write::<u8>(line + index, value),
            );
        }
    }

    /// Copies this block's chunks of round `round` from the rings to the results: one chunk of each
    /// message that arrives through a ring.
    #[inline(always)]
    fn copy(&self, round: u64) {
        let call = self.call;
        for k in 1..self.ranks() {
            let peer = self.transfers.of_peer::<W>(k);
            let message = self.received(&peer, k);
            let (line, n) = message.range(round);
            if peer.is_direct != 0 {
                continue;
            }
            let from = self.slot(call.areas[0], round, call.rank_after(k));
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

/// Loads the value of a flag with acquire order.
///
/// # Safety
/// `flag` points to a flag in this rank's staging area.
#[inline(always)]
unsafe fn seen(flag: *mut u64) -> u64 {
    // SAFETY: the word is accessed only atomically.
    unsafe { <u64 as Access<Sys>>::load_acquire(flag) }
}

/// Sends and receives the messages of one launch through rings. The launch has up to `W` ranks. If
/// `WHOLE` is true, all addresses and lengths are multiples of [`LINE_BYTES`].
#[inline(always)]
fn run<const W: usize, const WHOLE: bool>(ctx: &Context, call: &Call, transfers: &Transfers) -> Result<(), Failed> {
    gpu::start_next_kernel();
    let is_call = call.areas[0] != 0 && call.counter != 0 && transfers.has_any::<W>();
    gpu::wait_for_previous_kernel();
    if !is_call {
        return Ok(());
    }
    // The first block of a pair pushes.
    let is_pair = call.is_combined == 0;
    let number = gpu::block_idx().x;
    let index = u64::from(if is_pair { number / 2 } else { number });
    let (is_first, is_second) = (!is_pair || number & 1 == 0, !is_pair || number & 1 != 0);
    // Whether the second block of a pair pushes too.
    let both_push = is_pair && transfers.peers[0].is_direct != 0;
    let (half, halves) = if both_push { (u64::from(number & 1), 2) } else { (0, 1) };
    let slot_lines = call.bank_bytes / LINE_BYTES as u64 / u64::from(call.ranks);
    let block = Block::<W, WHOLE> { call, transfers, index, half, halves, slot_lines, accepted: Cell::new(0) };
    let operation = operation(call.op);
    // Thread `k` handles the flags of the rank `k` places after this rank.
    let k = gpu::thread_idx().x;
    let has_peer = k > 0 && k < call.ranks;
    let peer = transfers.of_peer::<W>(if has_peer { k } else { 0 });
    let (rank, area) = (call.rank_after(if has_peer { k } else { 0 }), call.area_of::<W>(if has_peer { k } else { 0 }));
    let sends = |round| has_peer && block.sent(&peer, k).has(round);
    let receives = |round| has_peer && block.received(&peer, k).has(round);
    let own = |at| block.flag(call.areas[0], rank, at);
    let counter = |of: Count| {
        let word = index as usize * RING_COUNTERS + of as usize * MAX_RANKS + k as usize;
        pointer::<u64>(call.counter).wrapping_add(word)
    };
    let raise = |at, value| {
        let flag = block.flag(area, call.rank, at);
        // SAFETY: the word is in the area of a mapped peer and is accessed only atomically.
        unsafe { <u64 as Access<Sys>>::store_release(flag, value) };
    };
    // SAFETY: the flag is in this rank's area.
    let is_reached = |at, wanted: u64| (unsafe { seen(own(at)) }.wrapping_sub(wanted).cast_signed() >= 0).then_some(());
    let (mut sent, mut received, mut offers, mut offers_here) = (0, 0, 0, 0);
    let is_offered = sends(0) && peer.send_is_offered != 0;
    let is_offered_here = receives(0) && peer.recv_is_offered != 0;
    if has_peer {
        // SAFETY: the launch guarantees the counters, which belong to this block.
        unsafe {
            sent = <u64 as Access<Gpu>>::load_relaxed(counter(Count::Sent));
            received = <u64 as Access<Gpu>>::load_relaxed(counter(Count::Received));
            offers = <u64 as Access<Gpu>>::load_relaxed(counter(if is_first { Count::FirstOffers } else { Count::SecondOffers }));
            offers_here = <u64 as Access<Gpu>>::load_relaxed(counter(Count::OffersHere));
        }
        if is_second && is_offered_here {
            let offer = if peer.is_direct != 0 { peer.recv.wrapping_sub(call.areas[0]) } else { 0 };
            // SAFETY: the word is in the area of a mapped peer and is accessed only atomically.
            unsafe { <u64 as Access<Sys>>::store_relaxed(block.flag(area, call.rank, OFFER), offer) };
            raise(OPEN, offers_here + 1);
        }
    }
    if both_push && is_second {
        block.copy_own(0);
        ctx.poll_block(operation, is_offered, || is_reached(OPEN, offers + 1), || call.pe_after(k))?;
        block.accept_offers();
        block.store_direct();
        gpu::sync_threads();
        if is_offered {
            raise(SECOND, offers + 1);
        }
    }
    // Numbers of rounds in this launch whose chunks this block has pushed and copied.
    let (mut pushed, mut copied) = (0, 0);
    let mut round = 0;
    loop {
        let (any_sent, any_received) = block.has(round);
        let any_arrives = is_second && round > 0 && block.has(round - 1).1;
        let any_sent = is_first && any_sent;
        let any_copied = is_second && (any_received || block.sent(&transfers.peers[0], 0).has(round));
        if !(any_sent || any_copied || any_arrives) {
            break;
        }
        if any_sent {
            // A receiver that has begun the call has copied all earlier messages.
            let (flag, wanted) =
                if round == 0 && is_offered { (OPEN, offers + 1) } else { (CREDIT, sent + (round + 1).saturating_sub(SLOTS)) };
            ctx.poll_block(operation, sends(round), || is_reached(flag, wanted), || call.pe_after(k))?;
            if round == 0 {
                block.accept_offers();
                block.store_direct();
            }
            let is_sent = sends(round);
            block.push(round);
            gpu::sync_threads();
            if is_sent {
                pushed += 1;
                raise(READY, sent + pushed);
            }
            if round == 0 && is_offered && !both_push {
                raise(SECOND, offers + 1);
            }
        }
        if any_arrives {
            let is_ready = || {
                let has_second = !is_offered_here || is_reached(SECOND, offers_here + 1).is_some();
                is_reached(READY, received + round).filter(|()| has_second)
            };
            ctx.poll_block(operation, receives(round - 1), is_ready, || call.pe_after(k))?;
            block.copy(round - 1);
            gpu::sync_threads();
            if receives(round - 1) {
                copied += 1;
                raise(CREDIT, received + copied);
            }
        }
        if is_second && !both_push {
            block.copy_own(round);
        }
        round += 1;
    }
    // SAFETY: the launch guarantees the counters. In a pair, each block writes its own counters.
    unsafe {
        if has_peer && is_first {
            <u64 as Access<Gpu>>::store_relaxed(counter(Count::Sent), sent + pushed);
            <u64 as Access<Gpu>>::store_relaxed(counter(Count::FirstOffers), offers + u64::from(is_offered));
        }
        if has_peer && is_second {
            <u64 as Access<Gpu>>::store_relaxed(counter(Count::Received), received + copied);
            <u64 as Access<Gpu>>::store_relaxed(counter(Count::SecondOffers), offers + u64::from(is_offered));
            <u64 as Access<Gpu>>::store_relaxed(counter(Count::OffersHere), offers_here + u64::from(is_offered_here));
        }
    }
    Ok(())
}

macro_rules! entries {
    ($($name:ident: <$w:literal, $whole:literal>;)*) => {$(
        /// Sends and receives messages through rings. The kernel's name ends with the maximum
        /// number of ranks. The grid is one-dimensional. If [`Call::is_combined`] is 1, the grid
        /// has [`Call::max_blocks`] blocks. Otherwise the grid has twice as many blocks, and the
        /// blocks work in pairs.
        #[kernel(max_threads = 512, unchecked, ptx = crate::PTX)]
        pub fn $name(ctx: &Context, call: Call, transfers: Transfers) -> Result<(), Failed> {
            run::<$w, $whole>(ctx, &call, &transfers)
        }
    )*};
}

entries! {
    transfer_ring_plain_2: <2, true>;
    transfer_ring_2: <2, false>;
    transfer_ring_plain_4: <4, true>;
    transfer_ring_4: <4, false>;
    transfer_ring_plain_8: <8, true>;
    transfer_ring_8: <8, false>;
}
