//! Messages between pairs of ranks: send and receive, broadcast, gather, scatter, and all-to-all
//! with parts of any length.
//!
//! A launch sends at most one message to each rank and receives at most one message from each rank.
//! Only ranks that have a message make a call, so the team has no common count of calls. Each pair
//! of ranks has a *channel* for each direction, with separate memory and a count of its messages.
//!
//! | kernel | what travels | when |
//! |---|---|---|
//! | [`Form::Lines`] | lines whose content shows that they have arrived, as in [`crate::exchange`] | a message fits into a channel |
//! | [`Form::Ring`] | chunks through a ring of slots for each block, with flags; or direct stores into the result | any length |
//!
//! Both ranks of a message must choose the same form.

mod lines;
mod ring;

use crate::MAX_RANKS;
use crate::call::select_of;
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

pub use lines::*;
pub use ring::*;

/// The transport that carries messages: lines or rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Messages are sent as lines, whose content shows whether they have arrived.
    Lines,
    /// Messages are sent in chunks through rings.
    Ring,
}

/// The message to another rank, and the message from that rank. That rank is called *the peer*.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, KernelArg)]
#[repr(C)]
pub struct Transfer {
    /// Address of the message to the peer.
    pub send: u64,
    /// Length in bytes of the message to the peer; 0 if there is no message.
    pub send_bytes: u64,
    /// Address to which the message from the peer is written.
    pub recv: u64,
    /// Length in bytes of the message from the peer; 0 if there is no message.
    pub recv_bytes: u64,
    /// For [`Form::Ring`]: 1 if this rank offers `recv` to the peer, which then stores its message
    /// directly in `recv`. The peer must map an offered `recv` at the same distance from this
    /// rank's area. An offered `recv` must be aligned to lines, and must not overlap a message that
    /// this rank sends. At index 0 of [`Transfers::peers`]: 1 if this rank offers `recv` for every
    /// message that it receives from another rank.
    pub is_direct: u64,
    /// For [`Form::Ring`]: number of lines in each chunk of the message to the peer. At least 1,
    /// and at most the number for which a slot has room.
    pub send_chunk: u64,
    /// For [`Form::Ring`]: number of lines in each chunk of the message from the peer.
    pub recv_chunk: u64,
    /// For [`Form::Ring`]: 1 if the peer decides, when its kernel runs, whether this rank stores
    /// the message directly in the peer's `recv`. The peer must set `recv_is_offered` for the same
    /// message. The length of the message must be a multiple of [`LINE_BYTES`](crate::LINE_BYTES).
    pub send_is_offered: u64,
    /// For [`Form::Ring`]: 1 if this rank decides, when its kernel runs, whether the peer stores
    /// the message directly in `recv`. The peer must set `send_is_offered` for the same message.
    pub recv_is_offered: u64,
}

/// The messages that a launch sends and receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, KernelArg)]
#[repr(C)]
pub struct Transfers {
    /// The messages to and from each rank. Index `k` belongs to rank `(rank + k) % ranks`. Index 0
    /// holds the message of this rank to itself.
    pub peers: [Transfer; MAX_RANKS],
}

impl Transfers {
    /// Returns a field of the messages at index `k`.
    #[inline(always)]
    fn field(&self, k: u32, field: impl Fn(&Transfer) -> u64) -> u64 {
        self.field_of::<MAX_RANKS>(k, field)
    }

    /// Like [`Self::field`], for `k` below `W`, which is 2, 4 or 8.
    #[inline(always)]
    fn field_of<const W: usize>(&self, k: u32, field: impl Fn(&Transfer) -> u64) -> u64 {
        select_of::<W, u64>(k, |index| field(&self.peers[index]))
    }

    /// Returns the messages to and from the peer `k` places after this rank, for `k` below `W`.
    #[inline(always)]
    fn of_peer<const W: usize>(&self, k: u32) -> Transfer {
        Transfer {
            send: self.field_of::<W>(k, |peer| peer.send),
            send_bytes: self.field_of::<W>(k, |peer| peer.send_bytes),
            recv: self.field_of::<W>(k, |peer| peer.recv),
            recv_bytes: self.field_of::<W>(k, |peer| peer.recv_bytes),
            is_direct: self.field_of::<W>(k, |peer| peer.is_direct),
            send_chunk: self.field_of::<W>(k, |peer| peer.send_chunk),
            recv_chunk: self.field_of::<W>(k, |peer| peer.recv_chunk),
            send_is_offered: self.field_of::<W>(k, |peer| peer.send_is_offered),
            recv_is_offered: self.field_of::<W>(k, |peer| peer.recv_is_offered),
        }
    }

    /// Returns whether there is a message among the first `W` ranks. Reads every part of the
    /// argument for these ranks, so that these parts are in the constant cache afterwards.
    #[inline(always)]
    fn has_any<const W: usize>(&self) -> bool {
        let any = |index: usize| self.peers[index].send_bytes | self.peers[index].recv_bytes;
        (0..W).fold(0, |found, index| found | any(index)) != 0
    }
}

/// Returns the operation for reports of failures. `op` is [`Call::op`](crate::Call::op), which is
/// the number of a [`KernelOp`] in these kernels.
#[inline(always)]
fn operation(op: u32) -> KernelOp {
    const BROADCAST: u32 = KernelOp::Broadcast as u32;
    const GATHER: u32 = KernelOp::Gather as u32;
    const SCATTER: u32 = KernelOp::Scatter as u32;
    const ALL_GATHER: u32 = KernelOp::AllGather as u32;
    const ALL_TO_ALL: u32 = KernelOp::AllToAll as u32;
    match op {
        BROADCAST => KernelOp::Broadcast,
        GATHER => KernelOp::Gather,
        SCATTER => KernelOp::Scatter,
        ALL_GATHER => KernelOp::AllGather,
        ALL_TO_ALL => KernelOp::AllToAll,
        _ => KernelOp::SendRecv,
    }
}

/// Returns the kernel for `ranks` ranks, or `None` if `ranks` is not 1 to [`MAX_RANKS`]. Pass
/// `true` as `is_whole` only if all addresses and lengths are multiples of
/// [`LINE_BYTES`](crate::LINE_BYTES).
#[cfg(not(target_arch = "nvptx64"))]
pub fn kernel(
    form: Form,
    ranks: u32,
    is_whole: bool,
) -> Option<&'static peerweave_device::launch::Kernel<(crate::Call, Transfers)>> {
    if ranks == 0 || ranks as usize > MAX_RANKS {
        return None;
    }
    Some(match (form, ranks, is_whole) {
        (Form::Lines, ..=4, true) => &lines::transfer_plain_4::KERNEL,
        (Form::Lines, ..=4, false) => &lines::transfer_4::KERNEL,
        (Form::Lines, _, true) => &lines::transfer_plain_8::KERNEL,
        (Form::Lines, _, false) => &lines::transfer_8::KERNEL,
        (Form::Ring, ..=2, true) => &ring::transfer_ring_plain_2::KERNEL,
        (Form::Ring, ..=2, false) => &ring::transfer_ring_2::KERNEL,
        (Form::Ring, ..=4, true) => &ring::transfer_ring_plain_4::KERNEL,
        (Form::Ring, ..=4, false) => &ring::transfer_ring_4::KERNEL,
        (Form::Ring, _, true) => &ring::transfer_ring_plain_8::KERNEL,
        (Form::Ring, _, false) => &ring::transfer_ring_8::KERNEL,
    })
}
