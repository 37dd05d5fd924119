//! Messages between pairs of ranks: sends, receives, and the collectives broadcast, gather and
//! scatter, which consist of messages. The collectives all_gather and all_to_all also use messages
//! if their parts are too long for a bank of the staging area.

use std::sync::Arc;

use peerweave_collectives::transfer::{self, Form, Transfer, Transfers};
use peerweave_collectives::{Call, LINE_BYTES, MAX_RANKS, barrier};
use peerweave_driver::CudaStream;
use peerweave_types::{KernelOp, Rank};

use super::Collectives;
use super::operands::check_parts;
use crate::error::{CudaError, misuse};
use crate::route::{self, Route};

/// A message that this rank sends or receives, for [`Collectives::messages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A message that this rank sends.
    Send {
        /// Rank that receives the message.
        to: Rank,
        /// Address of the message on this rank's device.
        at: u64,
        /// Length of the message in bytes.
        bytes: u64,
    },
    /// A message that this rank receives.
    Receive {
        /// Rank that sends the message.
        from: Rank,
        /// Address on this rank's device to which the message is written.
        at: u64,
        /// Length of the message in bytes.
        bytes: u64,
    },
}

impl Message {
    /// Creates a message that this rank sends to rank `to`. The message has `bytes` bytes, which
    /// are at address `at` of this rank's device.
    pub(crate) fn send(to: usize, at: u64, bytes: usize) -> Self {
        Self::Send { to: Rank::new(to as u32), at, bytes: bytes as u64 }
    }

    /// Creates a message that this rank receives from rank `from`. The message has `bytes` bytes,
    /// and is written to address `at` of this rank's device.
    pub(crate) fn receive(from: usize, at: u64, bytes: usize) -> Self {
        Self::Receive { from: Rank::new(from as u32), at, bytes: bytes as u64 }
    }

    /// Returns the other rank of the message: the receiver of a message that this rank sends, or
    /// the sender of a message that this rank receives.
    pub(crate) fn peer(&self) -> Rank {
        self.parts().1
    }

    /// Returns this message with a different peer. A message that this rank sends then goes to
    /// `peer`. A message that this rank receives then comes from `peer`.
    pub(crate) fn with_peer(self, peer: Rank) -> Self {
        match self {
            Self::Send { at, bytes, .. } => Self::Send { to: peer, at, bytes },
            Self::Receive { at, bytes, .. } => Self::Receive { from: peer, at, bytes },
        }
    }

    /// Returns four values: the name of the field that holds the peer's rank (`to` or `from`), the
    /// peer's rank, the address, and the length in bytes.
    fn parts(&self) -> (&'static str, Rank, u64, u64) {
        match *self {
            Self::Send { to, at, bytes } => ("to", to, at, bytes),
            Self::Receive { from, at, bytes } => ("from", from, at, bytes),
        }
    }
}

/// A wave: messages that are enqueued together, in at most two launches. There is at most one
/// message to each rank and at most one message from each rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wave {
    transfers: Transfers,
    /// Whether a message that this rank receives overwrites the memory of a message that this rank
    /// sends in the same wave.
    in_place: bool,
    /// Whether receivers may offer their result buffers to senders. A sender then writes directly
    /// to the offered buffer, instead of sending through a ring. The value must be the same on all
    /// ranks. It is `false` if all messages have the same sender or the same receiver, because such
    /// messages are faster through the rings (measured in bench-results/2026-11-26-h100).
    has_offers: bool,
}

impl Collectives {
    /// Returns the distance from this rank to `rank`, modulo the number of ranks.
    fn distance_to(&self, rank: usize) -> usize {
        let ranks = self.members.len();
        (rank + ranks - self.rank.get() as usize) % ranks
    }

    /// Adds a message to a wave, a group of messages that are enqueued together. This rank sends
    /// the message to rank `to`. The message consists of the `bytes` bytes at address `at`.
    pub(super) fn add_send(&self, wave: &mut Wave, to: usize, at: u64, bytes: u64) {
        let peer = &mut wave.transfers.peers[self.distance_to(to)];
        (peer.send, peer.send_bytes) = (at, bytes);
    }

    /// Adds a message to a wave, a group of messages that are enqueued together. This rank receives
    /// the message from rank `from`, and stores its `bytes` bytes at address `at`.
    pub(super) fn add_receive(&self, wave: &mut Wave, from: usize, at: u64, bytes: u64) {
        let peer = &mut wave.transfers.peers[self.distance_to(from)];
        (peer.recv, peer.recv_bytes) = (at, bytes);
    }

    /// Sets the fields of `peer` for direct messages. A direct message does not pass through a
    /// ring: the sender stores it in the receiver's result buffer. This is possible if the message
    /// consists of whole 16-byte lines, and if the receiver offers its buffer.
    ///
    /// `in_place` is true if a received message overwrites a message that this rank sends. This
    /// rank offers the buffer for the message from the peer only if `in_place` is false and the
    /// buffer is on this PE's heap.
    fn offer(&self, peer: &mut Transfer, in_place: bool) -> Result<(), CudaError> {
        // The sender and the receiver know the length, so they set the same fields.
        let is_whole = |bytes: u64| u64::from(bytes > 0 && bytes.is_multiple_of(LINE_BYTES as u64));
        (peer.send_is_offered, peer.recv_is_offered) = (is_whole(peer.send_bytes), is_whole(peer.recv_bytes));
        let offers = peer.recv_is_offered != 0 && !in_place && self.can_offer(peer.recv, peer.recv_bytes)?;
        peer.is_direct = u64::from(offers);
        Ok(())
    }

    /// Enqueues the messages of a [`Wave`], which has at most one message to each rank and from
    /// each rank. One launch sends all short messages, as 16-byte lines. A second launch sends all
    /// longer messages, in chunks through rings of slots. A launch without messages is omitted.
    ///
    /// # Safety
    /// The ranges of all messages are memory that this device can access until the stream has
    /// completed the call.
    pub(super) unsafe fn enqueue_wave(
        &self,
        name: &'static str,
        operation: KernelOp,
        stream: &Arc<CudaStream>,
        wave: &Wave,
    ) -> Result<(), CudaError> {
        let limits = &self.staging.limits;
        for form in [Form::Lines, Form::Ring] {
            let mut transfers = wave.transfers;
            let (mut most, mut sum, mut addresses) = (0, 0, 0);
            for (k, peer) in transfers.peers.iter_mut().enumerate() {
                // The sender and the receiver choose the same form, because the choice depends only
                // on the length of the message.
                let is_here = |bytes: u64| bytes > 0 && (route::by_lines(bytes, limits) == (form == Form::Lines));
                if !is_here(peer.send_bytes) {
                    peer.send_bytes = 0;
                }
                if k == 0 || !is_here(peer.recv_bytes) {
                    peer.recv_bytes = 0;
                }
                if k > 0 {
                    addresses |= if peer.recv_bytes > 0 { peer.recv } else { 0 };
                } else if peer.send_bytes > 0 {
                    addresses |= peer.recv;
                }
                addresses |= if peer.send_bytes > 0 { peer.send } else { 0 };
                addresses |= peer.send_bytes | peer.recv_bytes;
                most = most.max(peer.send_bytes).max(peer.recv_bytes);
                sum += peer.send_bytes + peer.recv_bytes;
                let slot_lines = self.staging.transfer_rings.bank_bytes / LINE_BYTES as u64 / u64::from(limits.ranks);
                let chunk = |bytes| route::chunk_lines(bytes, slot_lines, limits);
                (peer.send_chunk, peer.recv_chunk) = (chunk(peer.send_bytes), chunk(peer.recv_bytes));
                if form == Form::Ring && k > 0 && wave.has_offers {
                    self.offer(peer, wave.in_place)?;
                }
            }
            // If the senders store all messages to this rank directly, the blocks that copy have no
            // chunks to copy. These blocks then copy this rank's message to itself at once, because
            // their next round begins only when the messages of the other ranks have arrived.
            let [own, others @ ..] = &mut transfers.peers;
            own.is_direct = u64::from(others.iter().all(|peer| peer.recv_bytes == 0 || peer.is_direct != 0));
            if sum == 0 {
                continue;
            }
            let is_combined = route::is_combined(limits, wave.in_place);
            let is_whole = addresses.is_multiple_of(LINE_BYTES as u64);
            let (common, route) = match form {
                Form::Lines => (&self.staging.channels, route::parts(most, limits)),
                Form::Ring => (&self.staging.transfer_rings, route::ring(limits, is_combined)),
            };
            let call = Call { op: operation as u32, is_combined: u32::from(is_combined), ..*common };
            let slot = &self.transfers[form as usize][usize::from(is_whole)];
            let kernel = self.loaded(slot, name, None, || transfer::kernel(form, limits.ranks, is_whole))?;
            // SAFETY: the caller guarantees the ranges; the areas belong to this team.
            unsafe { self.enqueue_with(name, stream, kernel, route, &call, Some(&transfers), sum) }?;
        }
        Ok(())
    }

    /// Enqueues messages from this rank to other ranks, and from other ranks to this rank. A rank
    /// may send to itself.
    ///
    /// Messages between two ranks arrive in the order in which they are enqueued. Several messages
    /// to or from the same rank are transferred one after the other. On the device, a call may wait
    /// until each peer has begun its calls for these messages and for earlier messages.
    ///
    /// # Collective
    /// All senders and receivers of the messages. For each message, the sender and the receiver
    /// make a call that contains the message, with the same length.
    ///
    /// # Errors
    /// A call that returns [`CudaError::Misuse`] enqueues no kernel. [`CudaError::Misuse`] for an
    /// invalid rank and for an address of 0. [`CudaError::Misuse`] if a message from this rank to
    /// itself lacks its send or its receive. [`CudaError::Failed`] after a kernel has failed.
    /// Errors of the launch.
    ///
    /// # Safety
    /// All ranges must be memory that this device can access. They must stay allocated until the
    /// stream has completed the call. If a graph has captured the call, they must stay allocated
    /// while the graph exists. During this time, no other code may write messages or access
    /// results. A result must not overlap any other range.
    pub unsafe fn messages(&self, stream: &Arc<CudaStream>, messages: &[Message]) -> Result<(), CudaError> {
        const CALL: &str = "messages";
        let ranks = self.members.len();
        for message in messages {
            let (what, rank, at, bytes) = message.parts();
            if rank.index() >= ranks {
                return Err(misuse(CALL, what, rank, &format!("a rank below {ranks}")));
            }
            if bytes > 0 && (at == 0 || at.checked_add(bytes).is_none()) {
                return Err(misuse(
                    CALL,
                    "at",
                    format!("{at:#x}"),
                    "an address other than 0, with the whole message inside the address space",
                ));
            }
        }
        // Returns the lengths of this rank's messages to itself: in its sends if `way` is `to`, and
        // in its receives if `way` is `from`.
        let own = |way: &'static str| {
            let of_this_rank = move |(what, rank, _, bytes)| (what == way && rank == self.rank).then_some(bytes);
            messages.iter().map(Message::parts).filter_map(of_this_rank)
        };
        if !own("to").eq(own("from")) {
            let [sent, received] = ["to", "from"].map(|way| own(way).collect::<Vec<u64>>());
            let value = format!("sends of {sent:?} bytes and receives of {received:?} bytes");
            return Err(misuse(
                CALL,
                "the list of messages from this rank to itself",
                value,
                "a receive of the same length for each send, in the same order",
            ));
        }
        // Wave `n` contains message number `n` to each rank, and message number `n` from each rank.
        for number in 0.. {
            let mut wave = Wave { has_offers: true, ..Wave::default() };
            let mut counts = [[0; MAX_RANKS]; 2];
            let mut is_empty = true;
            for message in messages {
                let (what, rank, at, bytes) = message.parts();
                let (rank, sends) = (rank.index(), what == "to");
                let count = &mut counts[usize::from(sends)][rank];
                *count += 1;
                if *count != number + 1 {
                    continue;
                }
                is_empty = false;
                if sends { self.add_send(&mut wave, rank, at, bytes) } else { self.add_receive(&mut wave, rank, at, bytes) }
            }
            if is_empty {
                break;
            }
            // SAFETY: the caller guarantees the safety requirements of the called function.
            unsafe { self.enqueue_wave(CALL, KernelOp::SendRecv, stream, &wave) }?;
        }
        Ok(())
    }

    /// Enqueues a send: transfers the `bytes` bytes at address `at` to rank `to`, which must call
    /// [`receive`](Self::receive). The stream may wait until the receiver has begun to receive the
    /// previous message. For a long message, the stream may wait until the receiver has begun to
    /// receive this message.
    ///
    /// # Errors
    /// As for [`messages`](Self::messages).
    ///
    /// # Safety
    /// As for [`messages`](Self::messages).
    pub unsafe fn send(&self, stream: &Arc<CudaStream>, at: u64, bytes: u64, to: Rank) -> Result<(), CudaError> {
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.messages(stream, &[Message::Send { to, at, bytes }]) }
    }

    /// Enqueues a receive: writes a message of `bytes` bytes from rank `from` to address `at`. Rank
    /// `from` must call [`send`](Self::send).
    ///
    /// # Errors
    /// As for [`messages`](Self::messages).
    ///
    /// # Safety
    /// As for [`messages`](Self::messages).
    pub unsafe fn receive(&self, stream: &Arc<CudaStream>, at: u64, bytes: u64, from: Rank) -> Result<(), CudaError> {
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.messages(stream, &[Message::Receive { from, at, bytes }]) }
    }

    /// Enqueues a broadcast: copies `bytes` bytes at the root's `send` to `recv` on every rank. On
    /// the root, `recv` may be equal to `send`. Other ranks ignore `send`.
    ///
    /// # Collective
    /// All ranks, with the same length and root.
    ///
    /// # Errors
    /// As for [`messages`](Self::messages), and [`CudaError::Misuse`] if the operands overlap.
    ///
    /// # Safety
    /// As for [`messages`](Self::messages).
    pub unsafe fn broadcast(
        &self,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        bytes: u64,
        root: Rank,
    ) -> Result<(), CudaError> {
        const CALL: &str = "broadcast";
        let (ranks, me, root) = (self.members.len(), self.rank.get() as usize, self.root(CALL, root)?);
        let is_root = me == root;
        let from = if is_root { send } else { recv };
        check_parts(CALL, [(from, 1), (recv, u64::from(from != recv))], bytes, 1)?;
        let others = || (0..ranks).filter(move |rank| *rank != me);
        let mut wave = Wave::default();
        if is_root && from != recv {
            self.add_send(&mut wave, me, from, bytes);
            self.add_receive(&mut wave, me, recv, bytes);
        }
        if !self.routes.is_scattered(bytes, &self.staging.limits).0 {
            if is_root {
                others().for_each(|rank| self.add_send(&mut wave, rank, from, bytes));
            } else {
                self.add_receive(&mut wave, root, recv, bytes);
            }
            // SAFETY: the caller guarantees the safety requirements of the called function.
            return unsafe { self.enqueue_wave(CALL, KernelOp::Broadcast, stream, &wave) };
        }
        // Every rank gets one part from the root and sends this part to the other ranks.
        let part = (bytes / ranks as u64).next_multiple_of(LINE_BYTES as u64);
        let start = |rank: usize| (rank as u64 * part).min(bytes);
        let len = |rank: usize| start(rank + 1) - start(rank);
        if is_root {
            for rank in others() {
                self.add_send(&mut wave, rank, from + start(rank), len(rank));
            }
        } else {
            self.add_receive(&mut wave, root, recv + start(me), len(me));
        }
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.enqueue_wave(CALL, KernelOp::Broadcast, stream, &wave) }?;
        let mut wave = Wave::default();
        for rank in others() {
            if rank != root {
                self.add_send(&mut wave, rank, from + start(me), len(me));
            }
            if !is_root {
                self.add_receive(&mut wave, rank, recv + start(rank), len(rank));
            }
        }
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.enqueue_wave(CALL, KernelOp::Broadcast, stream, &wave) }
    }

    /// Enqueues a gather: every rank contributes one part of `bytes` bytes, and the root's `recv`
    /// gets the parts in the order of ranks. On the root, `send` may be the root's part of `recv`.
    /// Other ranks ignore `recv`.
    ///
    /// # Collective
    /// All ranks, with the same length and root.
    ///
    /// # Errors
    /// As for [`broadcast`](Self::broadcast).
    ///
    /// # Safety
    /// As for [`messages`](Self::messages).
    pub unsafe fn gather(&self, stream: &Arc<CudaStream>, send: u64, recv: u64, bytes: u64, root: Rank) -> Result<(), CudaError> {
        const CALL: &str = "gather";
        let (ranks, me, root) = (self.members.len(), self.rank.get() as usize, self.root(CALL, root)?);
        let mut wave = Wave::default();
        if me == root {
            let is_own = self.check_gather(CALL, send, recv, bytes)?;
            for rank in (0..ranks).filter(|rank| *rank != me || !is_own) {
                self.add_receive(&mut wave, rank, recv + rank as u64 * bytes, bytes);
            }
            if !is_own {
                self.add_send(&mut wave, me, send, bytes);
            }
        } else {
            check_parts(CALL, [(send, 1), (send, 0)], bytes, 1)?;
            self.add_send(&mut wave, root, send, bytes);
        }
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.enqueue_wave(CALL, KernelOp::Gather, stream, &wave) }
    }

    /// Enqueues a scatter: rank `r` gets part `r` of the root's `send` in its `recv`. A part has
    /// `bytes` bytes. On the root, `recv` may be the root's part of `send`. Other ranks ignore
    /// `send`.
    ///
    /// # Collective
    /// All ranks, with the same length and root.
    ///
    /// # Errors
    /// As for [`broadcast`](Self::broadcast).
    ///
    /// # Safety
    /// As for [`messages`](Self::messages).
    pub unsafe fn scatter(
        &self,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        bytes: u64,
        root: Rank,
    ) -> Result<(), CudaError> {
        const CALL: &str = "scatter";
        let (ranks, me, root) = (self.members.len(), self.rank.get() as usize, self.root(CALL, root)?);
        let mut wave = Wave::default();
        if me == root {
            let own = send.checked_add(bytes.saturating_mul(me as u64));
            let operands = if own == Some(recv) { [(send, ranks as u64), (send, 0)] } else { [(send, ranks as u64), (recv, 1)] };
            check_parts(CALL, operands, bytes, 1)?;
            for rank in (0..ranks).filter(|rank| *rank != me || own != Some(recv)) {
                self.add_send(&mut wave, rank, send + rank as u64 * bytes, bytes);
            }
            if own != Some(recv) {
                self.add_receive(&mut wave, me, recv, bytes);
            }
        } else {
            check_parts(CALL, [(recv, 1), (recv, 0)], bytes, 1)?;
            self.add_receive(&mut wave, root, recv, bytes);
        }
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.enqueue_wave(CALL, KernelOp::Scatter, stream, &wave) }
    }

    /// Enqueues a barrier: the stream continues once the streams of all ranks have reached the
    /// barrier. Accesses that any rank's stream has made before the barrier are visible to work
    /// after the barrier.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// [`CudaError::Failed`] after a kernel has failed; errors of the launch.
    pub fn barrier(&self, stream: &Arc<CudaStream>) -> Result<(), CudaError> {
        const CALL: &str = "barrier";
        let limits = &self.staging.limits;
        let kernel = self.loaded(&self.barriers, CALL, None, || barrier::kernel(limits.ranks))?;
        let banks = &self.staging.banks;
        let call = Call { send: banks.areas[0], recv: banks.areas[0], ..*banks };
        let route = Route::new(peerweave_collectives::Algorithm::OneShot, 1, 32);
        // SAFETY: the areas belong to this team; there are no operands.
        unsafe { self.enqueue_with(CALL, stream, kernel, route, &call, None::<&Transfers>, 0) }
    }

    /// Enqueues an all_gather or an all_to_all as messages between pairs of ranks. The part that
    /// this rank sends to rank `r` is at address `sent(r)`. The part from rank `r` becomes part `r`
    /// of `recv`.
    ///
    /// # Safety
    /// As for [`messages`](Self::messages).
    pub(super) unsafe fn exchange_messages(
        &self,
        name: &'static str,
        operation: KernelOp,
        stream: &Arc<CudaStream>,
        sent: impl Fn(u64) -> u64,
        recv: u64,
        bytes: u64,
    ) -> Result<(), CudaError> {
        let me = u64::from(self.rank.get());
        let in_place = sent(0) == recv && sent(1) == recv + bytes;
        let mut wave = Wave { in_place, has_offers: true, ..Wave::default() };
        for rank in 0..self.members.len() as u64 {
            let (from, to) = (sent(rank), recv + rank * bytes);
            if rank == me && from == to {
                continue;
            }
            self.add_send(&mut wave, rank as usize, from, bytes);
            self.add_receive(&mut wave, rank as usize, to, bytes);
        }
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.enqueue_wave(name, operation, stream, &wave) }
    }

    /// Returns the root as an index. Fails if the team has no rank with this number.
    pub(super) fn root(&self, call: &'static str, root: Rank) -> Result<usize, CudaError> {
        let ranks = self.members.len();
        if root.get() as usize >= ranks {
            return Err(misuse(call, "root", root, &format!("a rank below {ranks}")));
        }
        Ok(root.get() as usize)
    }

    /// Returns whether other ranks can store 16-byte lines directly in the result at `recv`:
    /// whether the result is on this PE's heap and consists of whole lines.
    pub(super) fn can_offer(&self, recv: u64, bytes: u64) -> Result<bool, CudaError> {
        let inner = &*self.gpu.0;
        let base = inner.base_of(self.gpu.pe())?;
        let end = base.saturating_add(inner.heap.bytes());
        let is_on_heap = recv >= base && recv.checked_add(bytes).is_some_and(|last| last <= end);
        Ok(is_on_heap && (recv | bytes).is_multiple_of(LINE_BYTES as u64))
    }
}
