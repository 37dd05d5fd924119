//! Messages between pairs of ranks: send and receive, broadcast, gather, scatter, and all-to-all
//! with parts of any length.
//!
//! A launch sends at most one message to each rank and receives at most one message from each rank.
//! Only ranks that send or receive a message launch a kernel, so the ranks have no common count of
//! launches. Each pair of ranks has a *channel* for each direction. A channel has its own memory
//! and its own count of messages.
//!
//! - [`Form::Lines`] is for messages that fit into a channel. It sends lines whose content shows
//!   that they have arrived, as in [`crate::exchange`].
//! - [`Form::Ring`] is for messages of any length. It sends chunks through a ring of slots for each
//!   block, with flags, or stores directly into the result.
//!
//! The sender and the receiver of a message must choose the same form.

mod lines;
mod ring;

use crate::MAX_RANKS;
use crate::call::select_of;
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

pub use lines::*;
pub use ring::*;

/// The form in which messages travel between ranks. The sender and the receiver must choose the
/// same form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// A message is sent as 16-byte lines. The content of a line shows whether it has arrived.
    Lines,
    /// A message is sent in chunks through rings of slots, and flags show that a chunk has arrived.
    Ring,
}

/// The message that this rank sends to one other rank, *the peer*, and the message that it receives
/// from the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, KernelArg)]
#[repr(C)]
pub struct Transfer {
    /// Address of the message to the peer.
    pub send: u64,
    /// Length in bytes of the message to the peer; 0 if there is no message.
    pub send_bytes: u64,
    /// Address to which the kernel writes the message from the peer.
    pub recv: u64,
    /// Length in bytes of the message from the peer; 0 if there is no message.
    pub recv_bytes: u64,
    /// For [`Form::Ring`]: 1 if this rank offers `recv` to the peer; otherwise 0. The peer stores
    /// its message directly in an offered `recv`.
    ///
    /// If this rank offers `recv`, the distance from this rank's staging area to `recv` must be the
    /// same in the peer's address space as in this rank's address space. `recv` must be aligned to
    /// [`LINE_BYTES`](crate::LINE_BYTES), and must not overlap a message that this rank sends.
    ///
    /// At index 0 of [`Transfers::peers`], the field has a different meaning: 1 if this rank offers
    /// `recv` to every other rank from which it receives a message.
    pub is_direct: u64,
    /// For [`Form::Ring`]: number of 16-byte lines in each chunk of the message to the peer. At
    /// least 1, and at most the number of lines that a slot can hold for a rank.
    pub send_chunk: u64,
    /// For [`Form::Ring`]: number of 16-byte lines in each chunk of the message from the peer.
    pub recv_chunk: u64,
    /// For [`Form::Ring`]: 1 if this rank's kernel must wait for an offer or a refusal from the
    /// peer before it sends the message to the peer. After an offer, the kernel stores the message
    /// directly in the peer's result buffer. After a refusal, the kernel sends the message through
    /// the ring.
    ///
    /// If this field is 1, the peer must set `recv_is_offered` to 1 for the same message, and the
    /// length of the message must be a multiple of [`LINE_BYTES`](crate::LINE_BYTES).
    pub send_is_offered: u64,
    /// For [`Form::Ring`]: 1 if this rank's kernel sends the peer an offer or a refusal before the
    /// peer sends its message. If [`is_direct`](Self::is_direct) is 1, the kernel offers `recv`,
    /// and the peer stores its message directly in `recv`. If `is_direct` is 0, the kernel refuses,
    /// and the peer sends its message through the ring.
    ///
    /// If this field is 1, the peer must set `send_is_offered` to 1 for the same message.
    pub recv_is_offered: u64,
}

/// The messages that a launch sends and receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, KernelArg)]
#[repr(C)]
pub struct Transfers {
    /// The messages to and from each rank. Index `k` belongs to rank `(rank + k) % ranks`. Index 0
    /// holds the message that this rank sends to itself.
    pub peers: [Transfer; MAX_RANKS],
}

impl Transfers {
    /// Returns one field of the [`Transfer`] at index `k`. The closure `field` reads this field
    /// from a `Transfer`.
    #[inline(always)]
    fn field(&self, k: u32, field: impl Fn(&Transfer) -> u64) -> u64 {
        self.field_of::<MAX_RANKS>(k, field)
    }

    /// Like [`Self::field`], but reads only the first `W` elements of [`Self::peers`]. `W` is 2, 4
    /// or 8, and `k` must be less than `W`.
    #[inline(always)]
    fn field_of<const W: usize>(&self, k: u32, field: impl Fn(&Transfer) -> u64) -> u64 {
        select_of::<W, u64>(k, |index| field(&self.peers[index]))
    }

    /// Returns the [`Transfer`] at index `k`: the messages to and from the rank `k` places after
    /// this rank. `k` must be below `W`.
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

    /// Returns whether this rank sends or receives a message in any of the first `W` transfers. The
    /// function reads fields of all these transfers, so the transfers are in the constant cache
    /// when the function returns.
    #[inline(always)]
    fn has_any<const W: usize>(&self) -> bool {
        let any = |index: usize| self.peers[index].send_bytes | self.peers[index].recv_bytes;
        (0..W).fold(0, |found, index| found | any(index)) != 0
    }
}

/// Returns the [`KernelOp`] with the number `op`, for failure reports. `op` is
/// [`Call::op`](crate::Call::op). Returns [`KernelOp::SendRecv`] if `op` is not the number of a
/// collective of this module.
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

/// Returns the kernel that sends and receives messages of the form `form`. The launch may have up
/// to `ranks` ranks. Returns `None` if `ranks` is not 1 to [`MAX_RANKS`]. Pass `true` as `is_whole`
/// only if the addresses and the lengths of all messages are multiples of
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
