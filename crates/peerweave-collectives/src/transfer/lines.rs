//! Messages that are sent as 16-byte lines. Each sender has a channel in the receiver's staging
//! area. The messages of a channel use its two banks of lines alternately.
//!
//! # Why two banks are enough
//! Each receiver has an acknowledgement word in the sender's area. When the receiver begins to
//! receive message `m` of a channel, it stores `m` in that word. At this time, the lines of all
//! earlier messages hold the sentinel again. The sender pushes message `m` only when the
//! acknowledgement word is at least `m - 1`. The bank of message `m` held message `m - 2`, so all
//! lines of the bank hold the sentinel again. As a consequence, a send waits until the receiver has
//! begun the previous receive.

use super::{Transfers, operation};
use crate::epoch::{self, pointer};
use crate::line::push::push_lines;
use crate::line::wait::position;
use crate::line::{LINE_BYTES, Lines, Operand, has_arrived};
use crate::{Call, MAX_RANKS};
use peerweave_device::gpu::{Access, Sys};
use peerweave_device::prelude::*;

/// Size in bytes of the acknowledgement words, which are at the start of a staging area. A sender's
/// area has one word for each receiver. The receiver writes its word when it begins to receive a
/// message.
const ACK_BYTES: u64 = 256;

/// Returns the size in bytes of a staging area for messages sent as lines. In each of `ranks`
/// channels, a message can have up to `channel_bytes` bytes.
pub const fn channels_bytes(ranks: u32, channel_bytes: u64) -> u64 {
    ACK_BYTES + 2 * ranks as u64 * channel_bytes
}

/// For messages sent as lines: length in bytes of the first part of a staging area. Before the
/// first launch, this part must be zero, and the rest of the area must be filled with the sentinel
/// ([`Call::sentinel`]).
pub const CHANNELS_ZEROS: u64 = ACK_BYTES;

/// For messages sent as lines: number of 64-bit words in which a rank counts its messages. There is
/// one word for each receiver, followed by one word for each sender.
pub const LINES_COUNTERS: usize = 2 * MAX_RANKS;

/// Returns the lines that hold message number `message` from rank `rank`. `area` is the address of
/// the receiver's staging area, which contains these lines.
///
/// # Safety
/// The area has a channel for each rank. Each channel has two banks of [`Call::bank_bytes`] bytes.
#[inline(always)]
unsafe fn channel(call: &Call, area: u64, rank: u32, message: u64) -> Lines {
    let at = area + ACK_BYTES + (u64::from(rank) * 2 + (message & 1)) * call.bank_bytes;
    // SAFETY: the caller guarantees the channel.
    unsafe { Lines::at(at) }
}

/// Sends and receives the messages of one launch as 16-byte lines.
#[inline(always)]
fn run<const W: usize, const MORE: bool, const WHOLE: bool>(
    ctx: &Context,
    call: &Call,
    transfers: &Transfers,
) -> Result<(), Failed> {
    gpu::start_next_kernel();
    let has_any = if MORE { transfers.has_any::<MAX_RANKS>() } else { transfers.has_any::<W>() };
    let is_call = call.areas[0] != 0 && call.counter != 0 && has_any;
    gpu::wait_for_previous_kernel();
    if !is_call {
        return Ok(());
    }
    let operation = operation(call.op);
    let lines_of = |bytes: u64| bytes.div_ceil(LINE_BYTES as u64);
    let sent_lines = |k: u32| lines_of(transfers.field(k, |peer| peer.send_bytes));
    let recv_lines = |k: u32| if k > 0 { lines_of(transfers.field(k, |peer| peer.recv_bytes)) } else { 0 };
    let (mut most_sent, mut most_received) = (0, 0);
    // The bound is a constant if possible, so that all indices are constants after unrolling.
    let bound = if MORE { call.ranks } else { W as u32 };
    for k in 0..bound {
        most_sent = most_sent.max(sent_lines(k));
        most_received = most_received.max(recv_lines(k));
    }
    let counter = |index: u32| call.counter + 8 * u64::from(index);
    // Returns the number of messages to a rank, or from a rank, before this launch. SAFETY: the
    // launch guarantees the counters.
    let count = |index: u32| unsafe { epoch::read(counter(index)) };
    let (sent, received) = (count, |k: u32| count(MAX_RANKS as u32 + k));

    let load = |k: u32, line| {
        // SAFETY: the launch guarantees the messages.
        let operand =
            unsafe { Operand::<WHOLE>::new(transfers.field(k, |peer| peer.send), transfers.field(k, |peer| peer.send_bytes)) };
        operand.read::<u8>(line)
    };
    let keep = |line, value| {
        let own = &transfers.peers[0];
        // SAFETY: the launch guarantees the messages. `recv` has room for this rank's message to
        // itself.
        unsafe { Operand::<WHOLE>::new(own.recv, own.send_bytes) }.write::<u8>(line, value);
    };
    // Bit `k` is the parity of the number of messages in the channel to or from the rank `k` places
    // after this rank.
    let (mut sent_odd, mut received_odd) = (0_u32, 0_u32);
    let open = || {
        for k in 1..bound {
            if recv_lines(k) > 0 {
                received_odd |= (received(k) as u32 & 1) << k;
            }
            if sent_lines(k) > 0 {
                let message = sent(k);
                sent_odd |= (message as u32 & 1) << k;
                let ack = pointer::<u64>(call.areas[0] + 8 * u64::from(call.rank_after(k)));
                let has_room = || {
                    // SAFETY: the word is in this rank's area and is accessed only atomically.
                    (unsafe { <u64 as Access<Sys>>::load_relaxed(ack) } + 1 >= message).then_some(())
                };
                ctx.poll(operation, has_room, || call.pe_after(k))?;
            }
        }
        let odd = sent_odd;
        Ok(move |k: u32| {
            // SAFETY: the launch guarantees the areas; the bank is free.
            unsafe { channel(call, call.area_after(k), call.rank, u64::from(odd >> k)) }
        })
    };
    push_lines::<W, MORE, 0, false, _>(call.ranks, most_sent, |k, line| line < sent_lines(k), load, keep, open)?;

    // The messages are counted while the lines are in transit. Thread `k` counts the message to the
    // rank `k` places after this rank. Thread `MAX_RANKS + k` counts the message from that rank.
    let thread = gpu::thread_idx().x;
    let k = if thread < MAX_RANKS as u32 { thread } else { thread - MAX_RANKS as u32 };
    let is_counted = k > 0 && k < call.ranks && if thread < MAX_RANKS as u32 { sent_lines(k) > 0 } else { recv_lines(k) > 0 };
    if is_counted && thread >= MAX_RANKS as u32 && gpu::block_rank() == 0 {
        let to = pointer::<u64>(call.area_after(k) + 8 * u64::from(call.rank));
        // SAFETY: this rank owns the word in the area of a mapped peer, which is accessed only
        // atomically. The launch is not counted yet, because this block has not added its share.
        unsafe { <u64 as Access<Sys>>::store_relaxed(to, received(k)) };
    }
    gpu::sync_threads();
    if is_counted {
        // SAFETY: the launch guarantees the counters.
        unsafe { epoch::add_share(counter(thread)) };
    }

    // Receives one line from each rank of a group.
    let receive = |base: u32, line: u64| -> Result<(), Failed> {
        let is_expected = |k: u32| k < call.ranks && line < recv_lines(k);
        // SAFETY: the launch guarantees areas with a channel for each rank.
        let from = |k: u32| unsafe { channel(call, call.areas[0], call.rank_after(k), u64::from(received_odd >> k)) };
        let look = || {
            let mut found = [[0; 2]; W];
            let mut all = true;
            for index in 0..W {
                let k = base + index as u32;
                if is_expected(k) {
                    found[index] = from(k).look(line);
                    all &= has_arrived(found[index], call.sentinel);
                }
            }
            all.then_some(found)
        };
        let missing = || {
            let is_missing = |k: &u32| is_expected(*k) && !has_arrived(from(*k).look(line), call.sentinel);
            // If all lines have arrived since the last poll, the report names the first sender.
            let ranks = || base..base + W as u32;
            call.pe_after(ranks().find(is_missing).or_else(|| ranks().find(|k| is_expected(*k))).unwrap_or(0))
        };
        let found = ctx.poll(operation, look, missing)?;
        for index in 0..W {
            let k = base + index as u32;
            if is_expected(k) {
                // SAFETY: the launch guarantees the messages.
                let operand = unsafe {
                    Operand::<WHOLE>::new(transfers.field(k, |peer| peer.recv), transfers.field(k, |peer| peer.recv_bytes))
                };
                operand.write::<u8>(line, found[index]);
                from(k).push(line, call.sentinel);
            }
        }
        Ok(())
    };
    let (first, step) = position();
    let mut line = first;
    while line < most_received {
        let mut base = 0;
        loop {
            receive(base, line)?;
            base += W as u32;
            if !MORE || base >= call.ranks {
                break;
            }
        }
        line += step;
    }
    Ok(())
}

macro_rules! entries {
    ($($name:ident: <$w:literal, $more:literal, $whole:literal>;)*) => {$(
        /// Sends and receives messages as 16-byte lines. The kernel's name ends with the maximum
        /// number of ranks.
        #[kernel(max_threads = 512, unchecked, ptx = crate::PTX)]
        pub fn $name(ctx: &Context, call: Call, transfers: Transfers) -> Result<(), Failed> {
            run::<$w, $more, $whole>(ctx, &call, &transfers)
        }
    )*};
}

entries! {
    transfer_plain_4: <4, false, true>;
    transfer_4: <4, false, false>;
    transfer_plain_8: <4, true, true>;
    transfer_8: <4, true, false>;
}
