//! Send and receive, through mailboxes. In a team, there is one mailbox for each sender and
//! receiver, in the segment of the receiver ([`peerweave_device::mailbox`]).
//!
//! A small message is stored in a slot of the mailbox, and a longer message is divided among slots.
//! If a longer message is in symmetric memory, or in private memory that the receiver can read, the
//! slot contains the address of the message instead. The receiver then copies the message directly
//! from the memory of the sender. No step blocks: all sends and receives of a group are polled in
//! turn until all are complete. So their order in the group does not matter.

use crate::memory::layout::{EAGER_BYTES, MAILBOX_SLOTS};
use crate::ops::shared::Shared;
use crate::platform::cross_memory;
use crate::simd;
use crate::sync::team::{Channel, TeamState};

use crate::sync::wait::{Limit, SlowWait, Stop};
use peerweave_core::backend::{Direction, Place, PointToPoint};
use peerweave_core::{Error, Mismatch, PeerCause, Timeout};
use peerweave_device::Word;
use peerweave_device::mailbox::{self, Answer, Slot};
use peerweave_types::{DType, Pe, SymOffset};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Values of the first payload word in a mailbox slot. The value says which memory contains the
/// message.
mod place {
    /// The message is in the mailbox slot.
    pub(super) const SLOT: u64 = 0;
    /// The message is in the symmetric memory of the sender.
    pub(super) const SYMMETRIC: u64 = 1;
    /// The message is in the private memory of the sender, which the receiver can read.
    pub(super) const PRIVATE: u64 = 2;
}

/// One send or receive that was started. Each transfer belongs to a channel. The sends of this rank
/// to one peer in one team are a channel, and the receives from that peer are another channel.
#[derive(Debug)]
struct Transfer {
    op: PointToPoint,
    team: Arc<TeamState>,
    /// Position of the transfer among all transfers of its channel, counted from 0.
    turn: u64,
    state: State,
    /// Used only in the state [`State::Queued`]: the number of messages that the channel had
    /// transferred at the last poll of this transfer. If this number has increased at the next
    /// poll, an earlier transfer of the channel has made progress.
    messages_seen: u64,
    /// Used only by a send: whether the receiver has refused a fragment of the message.
    refused: bool,
}

#[derive(Debug)]
enum State {
    /// The transfer waits, because earlier transfers of its channel have not ended.
    Queued,
    /// The transfer is running. So far, `bytes` bytes have been sent or received.
    Moving {
        bytes: usize,
    },
    /// Mailbox message `number` contains the address of the data. The receiver has not answered
    /// this message yet.
    Offered {
        number: u64,
    },
    /// A message that does not match the receive is being discarded. `bytes` of `total` bytes have
    /// been discarded.
    Discarding {
        bytes: usize,
        total: usize,
        mismatch: Box<Mismatch>,
    },
    Done,
}

/// Empty lists of transfers that later calls reuse, to avoid heap allocations.
#[derive(Debug, Default)]
pub(crate) struct TransferLists(Mutex<Vec<Vec<Transfer>>>);

impl TransferLists {
    /// Maximum number of empty lists of transfers that are kept for later calls. Further lists are
    /// freed.
    const MOST: usize = 16;

    fn take(&self) -> Vec<Transfer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn give_back(&self, mut list: Vec<Transfer>) {
        list.clear();
        let mut lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lists.len() < Self::MOST {
            lists.push(list);
        }
    }
}

/// Sends and receives that run at the same time: a single operation, or those of one group.
#[derive(Debug)]
pub(crate) struct Transfers {
    all: Vec<Transfer>,
    failed: Option<Error>,
}

impl Transfers {
    /// Starts the operations: each operation gets its position in its channel. The caller must then
    /// call [`Self::drive`] until all operations have ended, or call [`Self::skip`].
    pub(crate) fn start(shared: &Shared, ops: impl IntoIterator<Item = PointToPoint>) -> Result<Self, Error> {
        let mut all = shared.transfers.take();
        // Every team is looked up before any operation takes its place, so that an error has no
        // effect.
        for op in ops {
            let team = shared.teams.get(call_of(&op), op.team)?.into_arc();
            all.push(Transfer { op, team, turn: 0, state: State::Queued, messages_seen: 0, refused: false });
        }
        for transfer in &mut all {
            transfer.turn = transfer.channel().issued.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Self { all, failed: None })
    }

    /// Runs the transfers until all transfers are done. If `limit` is a time budget, returns when
    /// the budget is spent.
    pub(crate) fn drive(&mut self, shared: &Shared, limit: Limit) -> Result<(), Stop> {
        let mut waiter = shared.peers.waiter(limit);
        let mut look_again = true;
        loop {
            let mut moved = false;
            for transfer in &mut self.all {
                match transfer.poll(shared) {
                    Ok(progress) => moved |= progress,
                    Err(error) => {
                        transfer.finish();
                        moved = true;
                        self.failed.get_or_insert(error);
                    }
                }
            }
            if self.pending().next().is_none() {
                shared.transfers.give_back(std::mem::take(&mut self.all));
                return self.failed.take().map_or(Ok(()), |error| Err(error.into()));
            }
            if moved {
                waiter.progressed();
                look_again = true;
                continue;
            }
            match waiter.pause(|wait| self.check_peers(shared, wait), |waited| self.timeout(waited)) {
                Ok(()) => {}
                Err(Stop::BudgetSpent) => return Err(Stop::BudgetSpent),
                // The peer may have completed a transfer before it left, so the transfers are
                // polled once again.
                Err(Stop::Failed(_)) if std::mem::take(&mut look_again) => {}
                Err(Stop::Failed(error)) => {
                    let team = &self.pending().next().expect("a wait fails only while a transfer is pending").team;
                    let error = team.name_cause(&shared.peers, *error, false);
                    self.skip(shared, &error);
                    return Err(error.into());
                }
            }
        }
    }

    /// Ends all pending transfers after the failure `because`. The peers still expect these
    /// transfers, so the teams of the transfers fail.
    #[cold]
    pub(crate) fn skip(&mut self, shared: &Shared, because: &Error) {
        for transfer in self.all.iter_mut().filter(|transfer| !transfer.is_done()) {
            transfer.team.fail(&shared.peers, because);
            transfer.withdraw(shared);
            transfer.finish();
        }
    }

    fn pending(&self) -> impl Iterator<Item = &Transfer> {
        self.all.iter().filter(|transfer| !transfer.is_done())
    }

    /// Returns an error if a pending transfer can no longer succeed: its peer has left or failed,
    /// or another member of the team has died. The error names the PE whose failure came first.
    /// Also reports a long wait.
    fn check_peers<'a>(&self, shared: &'a Shared, wait: &mut SlowWait<'a>) -> Result<(), Error> {
        if let Some(first) = self.pending().next() {
            wait.report(&shared.peers, first.team.slot, first.peer_pe());
        }
        for transfer in self.pending() {
            let team = &transfer.team;
            if let Some((pe, cause)) = shared.peers.unavailable(&team.members, team.slot, transfer.peer_pe()) {
                return Err(transfer.error(shared, pe, cause));
            }
        }
        Ok(())
    }

    fn timeout(&self, waited: Duration) -> Error {
        let mut missing: Vec<Pe> = self.pending().map(|transfer| Pe::new(transfer.peer_pe() as u32)).collect();
        missing.sort_unstable();
        missing.dedup();
        let first = self.pending().next().expect("this function is called only while a transfer is pending");
        Error::from(Timeout::new(first.call(), first.team.name(), waited, missing))
    }
}

fn call_of(op: &PointToPoint) -> &'static str {
    match op.direction {
        Direction::Send => "send",
        Direction::Receive => "recv",
    }
}

fn channel<'a>(team: &'a TeamState, op: &PointToPoint) -> &'a Channel {
    let channels = &team.channels[op.peer.index()];
    match op.direction {
        Direction::Send => &channels.send,
        Direction::Receive => &channels.receive,
    }
}

impl Transfer {
    fn call(&self) -> &'static str {
        call_of(&self.op)
    }

    fn peer_pe(&self) -> usize {
        self.team.members[self.op.peer.index()]
    }

    fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    fn channel(&self) -> &Channel {
        channel(&self.team, &self.op)
    }

    /// Returns the error of this transfer after `pe` has failed. The error names the PE whose
    /// failure came first. This may be `pe` or another PE.
    fn error(&self, shared: &Shared, pe: usize, cause: PeerCause) -> Error {
        let word = shared.peers.team_failure(pe, self.team.slot);
        shared.peers.peer_error(self.call(), self.team.name(), pe, cause, word)
    }

    fn bytes(&self) -> usize {
        self.op.count * self.op.dtype.size_bytes()
    }

    /// Returns the mailbox slot that message `number` uses, and the address of the bytes in this
    /// slot.
    fn slot<'a>(&self, shared: &'a Shared, number: u64) -> (Slot<'a, AtomicU64>, *mut u8) {
        let (at, from) = match self.op.direction {
            Direction::Send => (self.peer_pe(), self.team.rank),
            Direction::Receive => (shared.peers.me, self.op.peer.index()),
        };
        let (segments, index) = (&shared.peers.segments, mailbox::index(number, MAILBOX_SLOTS));
        let words = segments.mail(at, self.team.slot, from, index);
        let slot = Slot { number: &words.number, payload: &words.payload, answer: &words.answer.word };
        (slot, segments.mail_bytes(at, self.team.slot, from, index))
    }

    /// Withdraws the offered message of this transfer, if the receiver has not answered it yet. The
    /// team has failed, so the mailbox slot of the message is not used again.
    fn withdraw(&self, shared: &Shared) {
        if let State::Offered { number } = self.state {
            self.slot(shared, number).0.withdraw();
        }
    }

    /// Ends the transfer, so that the next transfer of its channel may run. A transfer that is
    /// still queued may end only after the team has failed.
    fn finish(&mut self) {
        if !self.is_done() {
            let channel = self.channel();
            if channel.ended.load(Ordering::Relaxed) == self.turn {
                channel.ended.store(self.turn + 1, Ordering::Release);
            } else {
                channel.skipped.fetch_add(1, Ordering::Release);
            }
            self.state = State::Done;
        }
    }

    /// Runs one step of the transfer without waiting. Returns whether the transfer has made
    /// progress.
    fn poll(&mut self, shared: &Shared) -> Result<bool, Error> {
        if let State::Queued = self.state {
            let may_run = self.channel().ended.load(Ordering::Acquire) == self.turn;
            if let Some(error) = self.team.poisoned(self.call()) {
                return Err(error);
            }
            if !may_run {
                // Messages of earlier operations also count as progress.
                let messages = self.channel().messages.load(Ordering::Relaxed);
                return Ok(std::mem::replace(&mut self.messages_seen, messages) != messages);
            }
            self.state = State::Moving { bytes: 0 };
        }
        match (&self.state, self.op.direction) {
            (State::Done, _) => Ok(false),
            (_, Direction::Send) => self.poll_send(shared),
            (_, Direction::Receive) => self.poll_receive(shared),
        }
    }

    fn poll_send(&mut self, shared: &Shared) -> Result<bool, Error> {
        match self.state {
            State::Moving { bytes } => {
                let number = self.channel().messages.load(Ordering::Relaxed) + 1;
                let (slot, room) = self.slot(shared, number);
                let Some(last_answer) = slot.free_for(number, MAILBOX_SLOTS) else { return Ok(false) };
                // After the first `MAILBOX_SLOTS` messages, the previous message in this slot was a
                // part of the same transfer.
                self.refused |= bytes >= MAILBOX_SLOTS * EAGER_BYTES && last_answer == Answer::Refused;
                self.channel().messages.store(number, Ordering::Relaxed);
                let total = self.bytes();
                let publish = |place: u64, at: u64, bytes: usize| {
                    // This fence orders the vector stores of `simd`, which Rust's memory model does
                    // not cover.
                    AtomicU64::fence_release();
                    slot.publish(number, &[place, at, bytes as u64, self.op.dtype as u64, self.op.count as u64]);
                };
                let named = total > EAGER_BYTES;
                match self.op.at {
                    Place::Symmetric(at) if named => {
                        publish(place::SYMMETRIC, at.0, total);
                        self.state = State::Offered { number };
                    }
                    Place::Private(at) if named && shared.cross_memory => {
                        publish(place::PRIVATE, at as u64, total);
                        self.state = State::Offered { number };
                    }
                    at => {
                        let len = (total - bytes).min(EAGER_BYTES);
                        // SAFETY: `bytes + len` is in the buffer (checked by the core). A slot has
                        // room for `EAGER_BYTES` bytes, and belongs to the sender until the slot is
                        // published.
                        unsafe { simd::copy(room, shared.address(at).wrapping_add(bytes), len) };
                        publish(place::SLOT, 0, len);
                        if bytes + len < total {
                            self.state = State::Moving { bytes: bytes + len };
                        } else if self.refused {
                            return Err(self.refusal());
                        } else {
                            self.finish();
                        }
                    }
                }
                Ok(true)
            }
            State::Offered { number } => match self.slot(shared, number).0.answered(number) {
                None => Ok(false),
                Some(Answer::Refused) => Err(self.refusal()),
                Some(Answer::Accepted) => {
                    self.finish();
                    Ok(true)
                }
            },
            _ => Ok(false),
        }
    }

    fn poll_receive(&mut self, shared: &Shared) -> Result<bool, Error> {
        let number = self.channel().messages.load(Ordering::Relaxed) + 1;
        let (slot, room) = self.slot(shared, number);
        let mut message = [0; 5];
        if !slot.read(number, &mut message) {
            return Ok(false);
        }
        self.channel().messages.store(number, Ordering::Relaxed);
        let [place, at, len, dtype, count] = message;
        let (dtype, count) = (DType::from_u8(dtype as u8).unwrap_or(DType::U8), count as usize);
        if let State::Moving { bytes: 0 } = self.state
            && (dtype != self.op.dtype || count != self.op.count)
        {
            let mismatch = self.mismatch(describe("recv", self.op.dtype, self.op.count), describe("send", dtype, count));
            let total = count.saturating_mul(dtype.size_bytes());
            self.state = State::Discarding { bytes: 0, total, mismatch: Box::new(mismatch) };
        }
        if let State::Discarding { bytes, total, mismatch } = &mut self.state {
            *bytes += len as usize;
            slot.respond(number, Answer::Refused);
            return if *bytes >= *total { Err(Error::Mismatch(mismatch.clone())) } else { Ok(true) };
        }
        let State::Moving { bytes } = self.state else { return Ok(false) };
        let total = self.bytes();
        let len = (len as usize).min(total - bytes);
        let to = shared.address(self.op.at).wrapping_add(bytes);
        let peer = self.peer_pe();
        match place {
            place::SYMMETRIC => {
                let from = shared.peers.segments.symmetric(peer, SymOffset(at)).cast_const();
                if !std::ptr::eq(from, to) {
                    // SAFETY: the cores of the sender and of this rank have checked their ranges
                    // for the same count. A message of a rank to itself into the same bytes is
                    // excluded here. Other overlap is excluded by the core.
                    unsafe { super::copy::copy(to, from, len) };
                }
            }
            place::PRIVATE => {
                let pid = shared.peers.segments.page(peer).pid.load(Ordering::Relaxed);
                // SAFETY: `to` has room for `total` bytes (checked by the core).
                if unsafe { cross_memory::read(pid, at, to, len) }.is_err() {
                    slot.respond(number, Answer::Refused);
                    return Err(self.error(shared, peer, PeerCause::Unreachable));
                }
            }
            place::SLOT => {
                // SAFETY: a slot has `EAGER_BYTES` bytes, and `to` has room for them as above.
                unsafe { simd::copy(to, room, len.min(EAGER_BYTES)) };
            }
            _ => return Err(self.error(shared, peer, PeerCause::Failed)),
        }
        if place != place::SLOT && slot.is_withdrawn() {
            return Err(self.error(shared, peer, PeerCause::Failed));
        }
        // This fence orders the vector loads of `simd`, as in `poll_send`.
        AtomicU64::fence_release();
        slot.respond(number, Answer::Accepted);
        if bytes + len == total {
            self.finish();
        } else {
            self.state = State::Moving { bytes: bytes + len };
        }
        Ok(true)
    }

    /// Returns the error for a message that the receiver refused.
    fn refusal(&self) -> Error {
        let theirs = "recv and refused the message: the count or type differs, or the sender's memory is unreadable".to_owned();
        Error::Mismatch(Box::new(self.mismatch(describe("send", self.op.dtype, self.op.count), theirs)))
    }

    fn mismatch(&self, mine: String, theirs: String) -> Mismatch {
        Mismatch { team: self.team.name(), pe: Pe::new(self.peer_pe() as u32), mine, theirs }
    }
}

fn describe(call: &str, dtype: DType, count: usize) -> String {
    format!("{call} of {count} elements of {}", dtype.rust_name())
}
