//! Messages between pairs of ranks: send and receive, broadcast, gather, scatter, and all-to-all
//! with parts of any length.
//!
//! A launch sends at most one message to each rank and receives at most one from each. Only the
//! ranks that have a message make a call: there is no count that the whole team shares. Each pair
//! has a *channel* for each direction, in memory of its own, which counts its messages.
//!
//! | kernel | what travels | when |
//! |---|---|---|
//! | [`Form::Lines`] | lines that are their own flags, as in [`crate::exchange`] | a message fits into a channel |
//! | [`Form::Ring`] | chunks through a ring of slots for each block, with flags; or straight into the result | any length |
//!
//! Both ranks of a message must choose the same form.

mod lines;
mod ring;

use crate::MAX_RANKS;
use crate::call::select;
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

pub use lines::*;
pub use ring::*;

/// How messages move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// By lines.
    Lines,
    /// By chunks.
    Ring,
}

/// The messages to and from one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, KernelArg)]
#[repr(C)]
pub struct Transfer {
    /// Address and length in bytes of the message to the rank; no message if the length is 0.
    pub send: u64,
    /// Its length.
    pub send_bytes: u64,
    /// Address and length in bytes of the message from the rank; no message if the length is 0.
    pub recv: u64,
    /// Its length.
    pub recv_bytes: u64,
    /// [`Form::Ring`]: the address to which this rank stores its message, if both ranks know that
    /// the result of the receiver is mapped; then it is aligned to lines, as `send` is. 0: the
    /// message goes through the ring.
    pub remote: u64,
    /// [`Form::Ring`]: 1 if the sender of the message from the rank stores it in `recv`; for this
    /// rank's message to itself, if there is such a message.
    pub is_direct: u64,
    /// [`Form::Ring`]: lines of a chunk of the message to the rank: at least 1, and at most what a
    /// slot has for a rank.
    pub send_chunk: u64,
    /// Of the message from the rank.
    pub recv_chunk: u64,
}

/// The messages of a launch: those to and from the rank `k` places behind this one at index `k`.
/// The one at index 0 is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, KernelArg)]
#[repr(C)]
pub struct Transfers {
    /// By rank.
    pub peers: [Transfer; MAX_RANKS],
}

impl Transfers {
    /// A field of those at index `k`.
    #[inline(always)]
    fn field(&self, k: u32, field: impl Fn(&Transfer) -> u64) -> u64 {
        select(k, |index| field(&self.peers[index]))
    }

    /// Those at index `k`.
    #[inline(always)]
    fn behind(&self, k: u32) -> Transfer {
        Transfer {
            send: self.field(k, |peer| peer.send),
            send_bytes: self.field(k, |peer| peer.send_bytes),
            recv: self.field(k, |peer| peer.recv),
            recv_bytes: self.field(k, |peer| peer.recv_bytes),
            remote: self.field(k, |peer| peer.remote),
            is_direct: self.field(k, |peer| peer.is_direct),
            send_chunk: self.field(k, |peer| peer.send_chunk),
            recv_chunk: self.field(k, |peer| peer.recv_chunk),
        }
    }

    /// Returns whether there is a message, among the first four without `ALL`. It reads every part
    /// of the argument, so that it is in the cache of constants afterwards.
    #[inline(always)]
    fn has_any<const ALL: bool>(&self) -> bool {
        let any = |index: usize| self.peers[index].send_bytes | self.peers[index].recv_bytes;
        let first = any(0) | any(1) | any(2) | any(3);
        (if ALL { first | any(4) | any(5) | any(6) | any(7) } else { first }) != 0
    }
}

/// The operation that a report names, from [`Call::op`](crate::Call::op), which is a [`KernelOp`].
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
