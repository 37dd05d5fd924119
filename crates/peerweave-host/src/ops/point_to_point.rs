//! Send and receive: mailboxes between every two ranks of a team.
//!
//! The receiver's segment holds one mailbox per sending rank, a ring of slots. Small messages lie in the slot, in fragments where one slot is too
//! small; a large one in symmetric memory, or readable by the receiver, is named there and copied once, by the receiver. No step waits by
//! itself: all sends and receives that were grouped are polled in turn until all are done, so that their order inside a group does not matter.
//!
//! Invariant: slot number `s` (counted from 1) of a mailbox is written after slot `s - MAILBOX_SLOTS` was taken; `sequence` is published last,
//! `taken` after the last access.

use crate::memory::attach;
use crate::memory::layout::{EAGER_BYTES, MAILBOX_SLOTS, MailSlot};
use crate::ops::shared::Shared;
use crate::simd;
use crate::sync::team::{Lane, TeamState};

use crate::sync::wait::{Expired, Limit};
use peerweave_core::backend::{Direction, Place, PointToPoint};
use peerweave_core::{Error, Mismatch, PeerCause, Timeout};
use peerweave_types::{DType, Pe, SymOffset};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// How a message travels.
mod mode {
    /// In slots, `place[1]` bytes in this one.
    pub(super) const IN_SLOT: u64 = 0;
    /// In the sender's symmetric memory at `place[0]`.
    pub(super) const SYMMETRIC: u64 = 1;
    /// In the sender's private memory at `place[0]`, to be read through the kernel.
    pub(super) const ATTACH: u64 = 2;
    /// Nowhere any more: the sender has given up, and what it named may be something else by now.
    pub(super) const WITHDRAWN: u64 = 3;
}

/// Marks in [`MailSlot::taken`] a message that the receiver did not want.
const REFUSED: u64 = 1 << 63;

/// One send or receive on its way.
#[derive(Debug)]
struct Transfer {
    op: PointToPoint,
    team: Arc<TeamState>,
    turn: u64,
    state: State,
    /// How far the lane was when this operation last looked, while it waits for its turn.
    used_seen: u64,
    /// The receiver has thrown away a fragment of this message.
    refused: bool,
}

#[derive(Debug)]
enum State {
    /// The operations before it in its lane are not over.
    Queued,
    /// So many bytes have been sent or received.
    Moving {
        bytes: usize,
    },
    /// All is sent; the receiver has yet to take slot `number`.
    Offered {
        number: u64,
    },
    /// A message that does not fit is being discarded, `bytes` of `total` so far.
    Discarding {
        bytes: usize,
        total: usize,
        mismatch: Box<Mismatch>,
    },
    Done,
}

/// Sends and receives that are under way together.
#[derive(Debug)]
pub(crate) struct Transfers {
    all: Vec<Transfer>,
    failed: Option<Error>,
}

impl Transfers {
    /// Takes the operations' turns in their lanes. Must be driven to its end.
    pub(crate) fn begin(shared: &Shared, ops: impl IntoIterator<Item = PointToPoint>) -> Result<Self, Error> {
        // All teams are looked up before any turn is taken.
        let ops = ops.into_iter().map(|op| shared.teams.get(call_of(&op), op.team).map(|team| (op, team)));
        let ops = ops.collect::<Result<Vec<_>, Error>>()?;
        let all = ops.into_iter().map(|(op, team)| {
            let turn = lane(&team, &op).issued.fetch_add(1, Ordering::Relaxed);
            Transfer { op, team, turn, state: State::Queued, used_seen: 0, refused: false }
        });
        Ok(Self { all: all.collect(), failed: None })
    }

    /// Moves all of them to their ends; `None` where `limit` is a budget and it was spent first.
    pub(crate) fn drive(&mut self, shared: &Shared, limit: Limit) -> Result<Option<()>, Error> {
        let mut waiter = shared.waiter(limit);
        let mut last_look = true;
        loop {
            let mut moved = false;
            for i in 0..self.all.len() {
                match self.all[i].poll(shared) {
                    Ok(progress) => moved |= progress,
                    Err(error) => {
                        self.all[i].finish();
                        moved = true;
                        self.failed.get_or_insert(error);
                    }
                }
            }
            if self.all.iter().all(|transfer| matches!(transfer.state, State::Done)) {
                return self.failed.take().map_or(Ok(Some(())), Err);
            }
            if moved {
                waiter.progressed();
                last_look = true;
                continue;
            }
            match waiter.pause(|| self.gone(shared)) {
                Ok(()) => {}
                Err(Expired::Budget) => return Ok(None),
                // What the peer did before it went still counts: one more round.
                Err(_) if std::mem::take(&mut last_look) => {}
                Err(Expired::Failed(error)) => return Err(self.abandon(shared, error)),
                Err(Expired::Deadline(waited)) => {
                    let timeout = self.timeout(waited);
                    return Err(self.abandon(shared, timeout));
                }
            }
        }
    }

    /// Gives them up without having run, or half run.
    pub(crate) fn skip(&mut self, shared: &Shared, because: &Error) {
        self.abandon(shared, because.clone());
    }

    fn unfinished(&self) -> impl Iterator<Item = &Transfer> {
        self.all.iter().filter(|transfer| !matches!(transfer.state, State::Done))
    }

    /// Fails where a peer will not come, and names who was first: a member of the team that died before any other.
    fn gone(&self, shared: &Shared) -> Result<(), Error> {
        for transfer in self.unfinished() {
            let team = &transfer.team;
            if let Some((pe, cause)) = shared.will_not_come(&team.members, team.slot, transfer.peer_pe()) {
                return Err(transfer.error(shared, pe, cause));
            }
        }
        Ok(())
    }

    fn timeout(&self, waited: std::time::Duration) -> Error {
        let mut missing: Vec<Pe> = self.unfinished().map(|transfer| Pe::new(transfer.peer_pe() as u32)).collect();
        missing.sort_unstable();
        missing.dedup();
        let first = self.unfinished().next().expect("somebody is waited for");
        Error::Timeout(Box::new(Timeout { call: first.call(), team: first.team.name(), waited, missing }))
    }

    /// After a failure the lanes are out of step: their teams are given up.
    #[cold]
    fn abandon(&mut self, shared: &Shared, error: Error) -> Error {
        for transfer in &mut self.all {
            if !matches!(transfer.state, State::Done) {
                transfer.team.give_up(shared, &error);
                transfer.withdraw(shared);
                transfer.finish();
            }
        }
        error
    }
}

fn call_of(op: &PointToPoint) -> &'static str {
    match op.direction {
        Direction::Send => "send",
        Direction::Receive => "recv",
    }
}

fn lane<'a>(team: &'a TeamState, op: &PointToPoint) -> &'a Lane {
    let lanes = &team.lanes[op.peer.index()];
    match op.direction {
        Direction::Send => &lanes.send,
        Direction::Receive => &lanes.receive,
    }
}

impl Transfer {
    fn call(&self) -> &'static str {
        call_of(&self.op)
    }

    fn peer_pe(&self) -> usize {
        self.team.members[self.op.peer.index()]
    }

    /// An error that names `pe`, or whoever it blames itself.
    fn error(&self, shared: &Shared, pe: usize, cause: PeerCause) -> Error {
        let word = shared.segments.team_words(pe, self.team.slot).broken.word.load(Ordering::Acquire);
        let (pe, cause) = shared.first_cause_from(pe, cause, (word != 0).then_some(word));
        Error::Peer { call: self.call(), team: self.team.name(), pe: Pe::new(pe as u32), cause }
    }

    fn bytes(&self) -> usize {
        self.op.count * self.op.dtype.size_bytes()
    }

    /// The slot with this number of the mailbox, and its bytes.
    fn slot<'a>(&self, shared: &'a Shared, number: u64) -> (&'a MailSlot, *mut u8) {
        let (at, from) = match self.op.direction {
            Direction::Send => (self.peer_pe(), self.team.rank),
            Direction::Receive => (self.team.members[self.team.rank], self.op.peer.index()),
        };
        let index = (number - 1) as usize % MAILBOX_SLOTS;
        (shared.segments.mail(at, self.team.slot, from, index), shared.segments.mail_bytes(at, self.team.slot, from, index))
    }

    /// Takes back an offer that the receiver may yet find: what it copied before this, it copied from memory that was still lent; what it copies
    /// after, it will throw away. The slot is not used again, since the team is given up.
    fn withdraw(&self, shared: &Shared) {
        if let State::Offered { number } = self.state {
            self.slot(shared, number).0.mode.store(mode::WITHDRAWN, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }

    /// Leaves the lane to the next operation.
    fn finish(&mut self) {
        if !matches!(self.state, State::Done) {
            let lane = lane(&self.team, &self.op);
            if lane.turn.load(Ordering::Relaxed) == self.turn {
                lane.turn.store(self.turn + 1, Ordering::Release);
            }
            self.state = State::Done;
        }
    }

    /// One step; whether there was any progress.
    fn poll(&mut self, shared: &Shared) -> Result<bool, Error> {
        if matches!(self.state, State::Done) {
            return Ok(false);
        }
        if matches!(self.state, State::Queued) {
            if lane(&self.team, &self.op).turn.load(Ordering::Acquire) != self.turn {
                if let Some(error) = self.team.broken() {
                    return Err(error.clone());
                }
                // What those before it move is progress too.
                let used = lane(&self.team, &self.op).used.load(Ordering::Relaxed);
                return Ok(std::mem::replace(&mut self.used_seen, used) != used);
            }
            if let Some(error) = self.team.broken() {
                return Err(error.clone());
            }
            self.state = State::Moving { bytes: 0 };
        }
        match self.op.direction {
            Direction::Send => self.poll_send(shared),
            Direction::Receive => self.poll_receive(shared),
        }
    }

    fn poll_send(&mut self, shared: &Shared) -> Result<bool, Error> {
        match self.state {
            State::Moving { bytes } => {
                let used = &lane(&self.team, &self.op).used;
                let number = used.load(Ordering::Relaxed) + 1;
                let (slot, room) = self.slot(shared, number);
                let free_after = number.saturating_sub(MAILBOX_SLOTS as u64);
                let last = slot.taken.word.load(Ordering::Acquire);
                if last & !REFUSED < free_after {
                    return Ok(false);
                }
                self.refused |= bytes >= MAILBOX_SLOTS * EAGER_BYTES && last == free_after | REFUSED;
                used.store(number, Ordering::Relaxed);
                slot.what[0].store(self.op.dtype as u64, Ordering::Relaxed);
                slot.what[1].store(self.op.count as u64, Ordering::Relaxed);
                let total = self.bytes();
                let offer = |how: u64, place: u64, len: usize| {
                    slot.mode.store(how, Ordering::Relaxed);
                    slot.place[0].store(place, Ordering::Relaxed);
                    slot.place[1].store(len as u64, Ordering::Relaxed);
                    publish(&slot.sequence, number);
                };
                let by_name = total > EAGER_BYTES;
                match self.op.at {
                    Place::Symmetric(at) if by_name => {
                        offer(mode::SYMMETRIC, at.0, total);
                        self.state = State::Offered { number };
                    }
                    Place::Private(at) if by_name && shared.attach => {
                        offer(mode::ATTACH, at as u64, total);
                        self.state = State::Offered { number };
                    }
                    at => {
                        let len = (total - bytes).min(EAGER_BYTES);
                        // SAFETY: `bytes + len` lies in the buffer (checked by the core); a slot has room for `EAGER_BYTES` and is ours until published.
                        unsafe { simd::copy(room, shared.address(at).wrapping_add(bytes), len) };
                        offer(mode::IN_SLOT, 0, len);
                        if bytes + len == total {
                            if self.refused {
                                return Err(self.refusal());
                            }
                            self.finish();
                        } else {
                            self.state = State::Moving { bytes: bytes + len };
                        }
                    }
                }
                Ok(true)
            }
            State::Offered { number } => {
                let (slot, _) = self.slot(shared, number);
                let taken = slot.taken.word.load(Ordering::Acquire);
                if taken & !REFUSED < number {
                    return Ok(false);
                }
                if taken == number | REFUSED {
                    return Err(self.refusal());
                }
                self.finish();
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn poll_receive(&mut self, shared: &Shared) -> Result<bool, Error> {
        let used = &lane(&self.team, &self.op).used;
        let number = used.load(Ordering::Relaxed) + 1;
        let (slot, lies_at) = self.slot(shared, number);
        if slot.sequence.load(Ordering::Acquire) != number {
            return Ok(false);
        }
        used.store(number, Ordering::Relaxed);
        let dtype = DType::from_u8(slot.what[0].load(Ordering::Relaxed) as u8).unwrap_or(DType::U8);
        let count = slot.what[1].load(Ordering::Relaxed) as usize;
        let how = slot.mode.load(Ordering::Relaxed);
        let place = slot.place[0].load(Ordering::Relaxed);
        let len = slot.place[1].load(Ordering::Relaxed) as usize;
        if let State::Moving { bytes: 0 } = self.state
            && (dtype != self.op.dtype || count != self.op.count)
        {
            let mismatch = self.mismatch(describe("recv", self.op.dtype, self.op.count), describe("send", dtype, count));
            let total = count.saturating_mul(dtype.size_bytes());
            self.state = State::Discarding { bytes: 0, total, mismatch: Box::new(mismatch) };
        }
        if let State::Discarding { bytes, total, mismatch } = &mut self.state {
            *bytes += len;
            slot.taken.word.store(number | REFUSED, Ordering::Release);
            return if *bytes >= *total { Err(Error::Mismatch(mismatch.clone())) } else { Ok(true) };
        }
        let State::Moving { bytes } = self.state else { return Ok(false) };
        let total = self.bytes();
        let len = len.min(total - bytes);
        let to = shared.address(self.op.at).wrapping_add(bytes);
        let peer = self.peer_pe();
        match how {
            mode::SYMMETRIC => {
                let from = shared.segments.symmetric(peer, SymOffset(place)).cast_const();
                if !std::ptr::eq(from, to) {
                    // SAFETY: the sender's core has checked its range for the same count, this one's for `total`; a message to oneself into
                    // the same bytes is excluded, and overlap by the core.
                    unsafe { simd::copy(to, from, len) };
                }
            }
            mode::WITHDRAWN => return Err(self.error(shared, peer, PeerCause::Failed)),
            mode::ATTACH => {
                let pid = shared.segments.page(peer).pid.load(Ordering::Relaxed);
                // SAFETY: `to` has room for `total` (checked by the core).
                if unsafe { attach::read(pid, place, to, len) }.is_err() {
                    slot.taken.word.store(number | REFUSED, Ordering::Release);
                    return Err(self.error(shared, peer, PeerCause::Unreachable));
                }
            }
            _ => {
                // SAFETY: a slot holds `EAGER_BYTES` at least, `len` is no more (the sender's `offer`); `to` as above.
                unsafe { simd::copy(to, lies_at, len.min(EAGER_BYTES)) };
            }
        }
        if how != mode::IN_SLOT {
            fence(Ordering::Acquire);
            if slot.mode.load(Ordering::Relaxed) != how {
                return Err(self.error(shared, peer, PeerCause::Failed));
            }
        }
        taken(&slot.taken.word, number);
        if bytes + len == total {
            self.finish()
        } else {
            self.state = State::Moving { bytes: bytes + len }
        }
        Ok(true)
    }

    /// The receiver did not want this message, or could not read it.
    fn refusal(&self) -> Error {
        let theirs = "recv of another count or element type, or could not read what was sent".to_owned();
        Error::Mismatch(Box::new(self.mismatch(describe("send", self.op.dtype, self.op.count), theirs)))
    }

    fn mismatch(&self, mine: String, theirs: String) -> Mismatch {
        Mismatch { team: self.team.name(), pe: Pe::new(self.peer_pe() as u32), mine, theirs }
    }
}

/// Publishes a slot, with all that was stored before, by instructions that Rust's memory model does not know among others.
fn publish(sequence: &AtomicU64, number: u64) {
    fence(Ordering::Release);
    sequence.store(number, Ordering::Release);
}

/// Gives a slot back after the last access to it.
fn taken(word: &AtomicU64, number: u64) {
    fence(Ordering::Release);
    word.store(number, Ordering::Release);
}

fn describe(call: &str, dtype: DType, count: usize) -> String {
    format!("{call} of {count} elements of {dtype}")
}
