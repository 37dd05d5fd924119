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

/// The transport of messages: lines or rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Messages are sent by lines.
    Lines,
    /// Messages are sent in chunks through rings.
    Ring,
}

/// The message to another rank, and the message from that rank. The fields call it *the rank*.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, KernelArg)]
#[repr(C)]
pub struct Transfer {
    /// Address of the message to the rank.
    pub send: u64,
    /// Length in bytes of the message to the rank; 0 if there is no message.
    pub send_bytes: u64,
    /// Address for the message from the rank.
    pub recv: u64,
    /// Length in bytes of the message from the rank; 0 if there is no message.
    pub recv_bytes: u64,
    /// [`Form::Ring`]: 1 if this rank offers `recv` to the rank, which then stores its message
    /// directly there. An offered `recv` must be mapped on the rank, at the same distance from the
    /// area of this rank. It must be aligned to lines and must not overwrite a message that this
    /// rank sends. At index 0 of [`Transfers::peers`]: 1 if this rank offers the results of all
    /// messages from other ranks.
    pub is_direct: u64,
    /// [`Form::Ring`]: number of lines of a chunk of the message to the rank: at least 1, and at
    /// most the number for which a slot has room.
    pub send_chunk: u64,
    /// [`Form::Ring`]: number of lines that each block handles of the message from the rank.
    pub recv_chunk: u64,
    /// [`Form::Ring`]: 1 if the receiver of the message to the rank decides, when it runs, whether
    /// the message is stored directly in its result. The receiver must set `recv_is_offered` for
    /// the same messages. These messages must be whole lines.
    pub send_is_offered: u64,
    /// [`Form::Ring`]: 1 if this rank decides, when it runs, whether the message from the rank is
    /// stored directly in `recv`. The sender must set `send_is_offered` for the same messages.
    pub recv_is_offered: u64,
}

/// The messages of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, KernelArg)]
#[repr(C)]
pub struct Transfers {
    /// The messages to and from each rank. Index `k` belongs to rank `(rank + k) % ranks`. The
    /// message at index 0 is copied within this rank.
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

    /// Returns the messages at index `k`, which is below `W`.
    #[inline(always)]
    fn behind<const W: usize>(&self, k: u32) -> Transfer {
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

/// Returns the kernel for a number of ranks; `None` for numbers other than 1 to [`MAX_RANKS`]. With
/// `is_whole`, all addresses and lengths must be multiples of [`LINE_BYTES`](crate::LINE_BYTES).
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
