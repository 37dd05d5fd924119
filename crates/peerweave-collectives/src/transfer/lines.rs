//! Messages by lines: each channel has two banks, which alternate.
//!
//! # Why two banks are enough
//! When a launch begins to receive message `m` of a channel, it tells the sender so: it stores `m`
//! in a word of the sender's area, and at that time has put the sentinel back into the lines of all
//! messages before. The sender awaits `m - 1` before it pushes message `m`, whose bank held message
//! `m - 2`. So a send waits until the receiver has begun the receive before.

use super::{Form, Transfers, operation};
use crate::Call;
use crate::epoch::{self, pointer};
use crate::line::{LINE_BYTES, Lines, Operand, has_arrived};
use crate::push::push_lines;
use crate::wait::{GROUP, position};
use crate::{MAX_RANKS, transfer};
use peerweave_device::gpu::{Access, Sys};
use peerweave_device::prelude::*;

/// Bytes of the words at the start of an area by which receivers tell what they have put back.
const ACK_BYTES: u64 = 256;

/// Bytes of an area whose channels hold messages of so many bytes.
pub const fn channels_bytes(ranks: u32, channel_bytes: u64) -> u64 {
    ACK_BYTES + 2 * ranks as u64 * channel_bytes
}

/// Bytes at the start of an area that are zeros at first; the rest are lines.
pub const CHANNELS_ZEROS: u64 = ACK_BYTES;

/// Number of words that count the messages of a rank: those that it sends, then those that it
/// receives.
pub const LINES_COUNTERS: usize = 2 * MAX_RANKS;

/// The lines of a message from rank `rank` in an area.
///
/// # Safety
/// The area has channels of [`Call::bank_bytes`] for all ranks.
#[inline(always)]
unsafe fn channel(call: &Call, area: u64, rank: u32, message: u64) -> Lines {
    let at = area + ACK_BYTES + (u64::from(rank) * 2 + (message & 1)) * call.bank_bytes;
    // SAFETY: the caller promises the channel.
    unsafe { Lines::at(at) }
}

#[inline(always)]
fn run<const W: usize, const WHOLE: bool>(ctx: &Context, call: &Call, transfers: &Transfers) -> Result<(), Failed> {
    gpu::start_next_kernel();
    let is_call = call.areas[0] != 0 && call.counter != 0 && transfers.has_any(W);
    gpu::wait_for_previous_kernel();
    if !is_call {
        return Ok(());
    }
    let operation = operation(call.op);
    let lines_of = |bytes: u64| bytes.div_ceil(LINE_BYTES as u64);
    let sent_lines = |k: usize| if k < W { lines_of(transfers.peers[k].send_bytes) } else { 0 };
    let recv_lines = |k: usize| if k > 0 && k < W { lines_of(transfers.peers[k].recv_bytes) } else { 0 };
    let (mut most_sent, mut most_received) = (0, 0);
    for k in 0..W {
        most_sent = most_sent.max(sent_lines(k));
        most_received = most_received.max(recv_lines(k));
    }
    let counter = |index: usize| call.counter + 8 * index as u64;
    let ack = |k: usize| pointer::<u64>(call.areas[0] + 8 * u64::from(call.rank_behind(k as u32)));
    // Messages of each channel before this launch.
    let (mut sent, mut received) = ([0_u64; W], [0_u64; W]);

    let load = |k: u32, line| {
        let peer = transfers.behind(k);
        // SAFETY: the launch promises the messages.
        unsafe { Operand::<WHOLE>::new(peer.send, peer.send_bytes) }.read::<u8>(line)
    };
    let keep = |line, value| {
        let own = transfers.peers[0];
        // SAFETY: as above; the message of a rank to itself has its place in `recv`.
        unsafe { Operand::<WHOLE>::new(own.recv, own.send_bytes) }.write::<u8>(line, value);
    };
    let open = || {
        for k in 1..W {
            // SAFETY: the launch promises the counters.
            unsafe {
                if sent_lines(k) > 0 {
                    sent[k] = epoch::read(counter(k));
                }
                if recv_lines(k) > 0 {
                    received[k] = epoch::read(counter(MAX_RANKS + k));
                }
            }
        }
        let has_room = |k: usize| {
            // SAFETY: a word of this rank's area, which is accessed atomically alone.
            sent_lines(k) == 0 || unsafe { <u64 as Access<Sys>>::load_relaxed(ack(k)) } + 1 >= sent[k]
        };
        let look = || {
            let mut all = true;
            for k in 1..W {
                all &= has_room(k);
            }
            all.then_some(())
        };
        let missing = || {
            let mut pe = call.pes[0];
            for k in 1..W {
                if !has_room(k) {
                    pe = call.pes[k];
                }
            }
            pe
        };
        ctx.poll(operation, look, missing)?;
        let sent = sent;
        Ok(move |k: u32| {
            let mut message = 0;
            for index in 1..W {
                if index as u32 == k {
                    message = sent[index];
                }
            }
            // SAFETY: the launch promises the areas; the bank is free.
            unsafe { channel(call, call.area_behind(k), call.rank, message) }
        })
    };
    let there = |k: u32, line| line < lines_of(transfers.behind(k).send_bytes);
    push_lines::<W, 0, false, _>(call.ranks, most_sent, there, load, keep, open)?;

    // While the lines travel.
    gpu::sync_threads();
    let thread = gpu::thread_idx().x as usize;
    for k in 1..W {
        // SAFETY: as above; the word is this rank's in the area of a mapped peer, which is accessed
        // atomically alone.
        unsafe {
            if thread == k && sent_lines(k) > 0 {
                epoch::add_share(counter(k));
            }
            if thread == W + k && recv_lines(k) > 0 {
                epoch::add_share(counter(MAX_RANKS + k));
                if gpu::block_rank() == 0 {
                    let to = pointer::<u64>(call.areas[k] + 8 * u64::from(call.rank));
                    <u64 as Access<Sys>>::store_relaxed(to, received[k]);
                }
            }
        }
    }

    // A line of each rank of a group.
    let receive = |base: usize, line: u64| -> Result<(), Failed> {
        let is_expected = |k: usize| line < recv_lines(k);
        // SAFETY: as above.
        let from = |k: usize| unsafe { channel(call, call.areas[0], call.rank_behind(k as u32), received[k]) };
        let look = || {
            let mut found = [[0; 2]; GROUP];
            let mut all = true;
            for index in 0..GROUP.min(W) {
                if is_expected(base + index) {
                    found[index] = from(base + index).look(line);
                    all &= has_arrived(found[index], call.sentinel);
                }
            }
            all.then_some(found)
        };
        let missing = || {
            let mut pe = call.pes[0];
            for index in 0..GROUP.min(W) {
                let k = base + index;
                if is_expected(k) && !has_arrived(from(k).look(line), call.sentinel) {
                    pe = call.pes[k];
                }
            }
            pe
        };
        let found = ctx.poll(operation, look, missing)?;
        for index in 0..GROUP.min(W) {
            let k = base + index;
            if is_expected(k) {
                let peer = transfers.peers[k];
                // SAFETY: as above.
                unsafe { Operand::<WHOLE>::new(peer.recv, peer.recv_bytes) }.write::<u8>(line, found[index]);
                from(k).push(line, call.sentinel);
            }
        }
        Ok(())
    };
    let (first, step) = position();
    let mut line = first;
    while line < most_received {
        receive(0, line)?;
        // Two groups are enough for all ranks. Written out, so that no index varies.
        if W > GROUP {
            receive(GROUP, line)?;
        }
        line += step;
    }
    Ok(())
}

macro_rules! entries {
    ($($name:ident: <$w:literal, $whole:literal>;)*) => {$(
        #[doc = concat!("Messages among up to ", $w, " ranks by lines.")]
        #[kernel(max_threads = 512, unchecked)]
        pub fn $name(ctx: &Context, call: Call, transfers: Transfers) -> Result<(), Failed> {
            run::<$w, $whole>(ctx, &call, &transfers)
        }
    )*};
}

entries! {
    transfer_plain_2: <2, true>;
    transfer_2: <2, false>;
    transfer_plain_4: <4, true>;
    transfer_4: <4, false>;
    transfer_plain_8: <8, true>;
    transfer_8: <8, false>;
}

/// The kernel for so many ranks; `None` for more than [`MAX_RANKS`]. `is_whole`: all addresses and
/// lengths are multiples of [`LINE_BYTES`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn kernel(form: Form, ranks: u32, is_whole: bool) -> Option<&'static peerweave_device::launch::Kernel<(Call, Transfers)>> {
    if ranks == 0 || ranks as usize > MAX_RANKS {
        return None;
    }
    Some(match (form, ranks, is_whole) {
        (Form::Lines, ..=2, true) => &transfer_plain_2::KERNEL,
        (Form::Lines, ..=2, false) => &transfer_2::KERNEL,
        (Form::Lines, ..=4, true) => &transfer_plain_4::KERNEL,
        (Form::Lines, ..=4, false) => &transfer_4::KERNEL,
        (Form::Lines, _, true) => &transfer_plain_8::KERNEL,
        (Form::Lines, _, false) => &transfer_8::KERNEL,
        (Form::Ring, _, _) => &transfer::transfer_ring_8::KERNEL,
    })
}
