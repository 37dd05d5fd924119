//! State of the server: joined PEs and pending requests. This is a pure state machine without
//! sockets, clock or threads.
//!
//! [`crate::server`] handles bytes and connections. This module receives decoded frames and returns
//! the frames to send.
//!
//! Invariants:
//! - [1] Each PE has one [`Seat`], the state of its membership, which belongs to one connection.
//!   After this connection has closed, no other connection can get the seat.
//! - [2] Every request of a joined PE is answered, or the connection of the PE is closed. A
//!   cancelled collective call may be answered a second time, which the client ignores.
//! - [3] `rounds` contains the rounds (collective calls) `first_round..first_round + rounds.len()`
//!   without a gap. A round is removed only when every PE has entered it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::error::Refusal;
use crate::job::token::Token;
use crate::wire::proto::{self, Collective, Fault, Frame, Hello, JOIN_REQUEST, ProtocolError, ROUND_BIT};

/// Number of a connection, assigned by the server.
pub(crate) type Link = u64;

/// An action that the server takes after an event.
#[derive(Debug)]
pub(crate) enum Action {
    /// Sends these bytes. The bytes are shared, because all PEs get the same result of an exchange.
    Send(Link, Arc<[u8]>),
    /// Closes the connection after all pending bytes have been sent.
    Close(Link),
}

/// Maximum number of collective calls by which one PE can be ahead of another PE. A PE gets ahead
/// if its calls time out before the other PE has made the same calls.
const MAX_OPEN_ROUNDS: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    Empty,
    Taken(Link),
    Left,
    Lost(Fault),
}

struct Member {
    seat: Seat,
    /// Number of rounds (collective calls) that the PE has entered.
    entered: u64,
    /// The PEs that were missing when this PE's latest request timed out. The list becomes empty
    /// when this PE makes its next request.
    in_vain: Vec<u32>,
    /// The PE that this PE has named, with [`Frame::Blame`], as the reason why this PE is about to
    /// end. If the connection of this PE then closes, the server reports the named PE as the cause.
    blames: Option<u32>,
}

struct Round {
    collective: Collective,
    label: String,
    opener: u32,
    /// The blobs of the PEs that have entered this round, in the order of the PEs. `None` for each
    /// PE that has not entered.
    blobs: Vec<Option<Vec<u8>>>,
    present: usize,
    len_bytes: usize,
    fault: Option<Fault>,
}

pub(crate) struct Board {
    token: Token,
    members: Vec<Member>,
    /// Number of PEs that have joined.
    joined: usize,
    rounds: VecDeque<Round>,
    first_round: u64,
    store: HashMap<String, Vec<u8>>,
    /// Total number of bytes in the key-value store and in the blobs of open rounds (collective
    /// calls).
    stored_len_bytes: usize,
    limit_bytes: usize,
    /// For each key, the requests that wait for the key's value. A request is stored as its PE and
    /// its ID.
    awaited: HashMap<String, Vec<(u32, u64)>>,
    /// PEs that wait for the join to complete.
    joining: Vec<u32>,
    /// The first fault: the first loss of a PE, or the end of the server. `None` if neither has
    /// occurred. All later waits fail with this fault.
    broken: Option<Fault>,
    /// The first PE that aborted the job, and the exit code that this PE requested.
    aborted: Option<(u32, u8)>,
    /// Of the PEs that have left, the PE that had entered the fewest rounds, preceded by this
    /// number of rounds. Rounds with this number or a higher number cannot complete, because the PE
    /// never enters them.
    first_left: Option<(u64, u32)>,
}

impl Board {
    pub(crate) fn new(token: Token, n_pes: u32, limit_bytes: usize) -> Self {
        let member = || Member { seat: Seat::Empty, entered: 0, in_vain: Vec::new(), blames: None };
        Self {
            token,
            members: (0..n_pes).map(|_| member()).collect(),
            joined: 0,
            rounds: VecDeque::new(),
            first_round: 0,
            store: HashMap::new(),
            stored_len_bytes: 0,
            limit_bytes,
            awaited: HashMap::new(),
            joining: Vec::new(),
            broken: None,
            aborted: None,
            first_left: None,
        }
    }

    /// Returns the first fault: the first loss of a PE, or the end of the server. Returns `None` if
    /// neither has occurred.
    pub(crate) fn first_loss(&self) -> Option<&Fault> {
        self.broken.as_ref()
    }

    /// Returns the first PE that aborted the job, and the exit code that this PE requested.
    pub(crate) fn aborted(&self) -> Option<(u32, u8)> {
        self.aborted
    }

    pub(crate) fn seats(&self) -> impl Iterator<Item = &Seat> {
        self.members.iter().map(|member| &member.seat)
    }

    /// Handles a hello. If the hello is refused, returns the reason and changes nothing.
    pub(crate) fn hello(&mut self, link: Link, hello: &Hello, out: &mut Vec<Action>) -> Result<(), Refusal> {
        if hello.token != self.token {
            return Err(Refusal::Token);
        }
        if hello.n_pes as usize != self.members.len() {
            return Err(Refusal::NPes);
        }
        let Some(member) = self.members.get_mut(hello.pe as usize) else { return Err(Refusal::NPes) };
        match &member.seat {
            Seat::Empty => {}
            // The launcher reported this PE as lost before the PE connected. The PE may connect to
            // get the cause.
            Seat::Lost(fault @ Fault::Reported { .. }) => {
                send(out, link, &Frame::Welcome);
                send(out, link, &Frame::Failed { request: JOIN_REQUEST, fault: fault.clone() });
                out.push(Action::Close(link));
                return Ok(());
            }
            _ => return Err(Refusal::AlreadyJoined),
        }
        member.seat = Seat::Taken(link);
        self.joined += 1;
        send(out, link, &Frame::Welcome);
        if let Some(fault) = self.broken.clone() {
            send(out, link, &Frame::Lost { fault: fault.clone() });
            send(out, link, &Frame::Failed { request: JOIN_REQUEST, fault });
            return Ok(());
        }
        self.joining.push(hello.pe);
        if self.joined == self.members.len() {
            let done = bytes(&Frame::Done { request: JOIN_REQUEST });
            for pe in std::mem::take(&mut self.joining) {
                self.tell(pe, &done, out);
            }
        }
        Ok(())
    }

    /// Handles a frame of a joined PE.
    pub(crate) fn frame(&mut self, pe: u32, frame: Frame, out: &mut Vec<Action>) -> Result<(), ProtocolError> {
        if !matches!(frame, Frame::Cancel { .. } | Frame::Leave | Frame::Blame { .. }) {
            self.members[pe as usize].in_vain.clear();
        }
        match frame {
            Frame::Enter { request, collective, label, blob } => {
                self.enter(pe, request & !ROUND_BIT, collective, label, blob, out)
            }
            Frame::Put { request, key, value } => {
                self.put(pe, request, key, value, out);
                Ok(())
            }
            Frame::Get { request, key, wait } => {
                self.get(pe, request, key, wait, out);
                Ok(())
            }
            Frame::Remove { request, key } => {
                if let Some(value) = self.store.remove(&key) {
                    self.stored_len_bytes -= key.len() + value.len();
                }
                self.answer(pe, &Frame::Done { request }, out);
                Ok(())
            }
            Frame::Check { request } => {
                self.answer(pe, &done_or(request, self.broken.clone()), out);
                Ok(())
            }
            Frame::Cancel { request } => {
                self.cancel(pe, request, out);
                Ok(())
            }
            Frame::Blame { pe: blamed } => {
                self.members[pe as usize].blames =
                    Some(blamed).filter(|&blamed| blamed != pe && (blamed as usize) < self.members.len());
                Ok(())
            }
            Frame::Abort { code } => {
                self.abort(pe, code, out);
                Ok(())
            }
            Frame::Leave => {
                self.leave(pe, out);
                Ok(())
            }
            other => Err(ProtocolError::OutOfPlace { kind: other.kind() }),
        }
    }

    /// Handles the end of the connection of a joined PE. Returns the loss of this PE. Returns
    /// `None` if the PE had already left or had already been lost.
    pub(crate) fn closed(&mut self, pe: u32, out: &mut Vec<Action>) -> Option<Fault> {
        if !matches!(self.members[pe as usize].seat, Seat::Taken(_)) {
            return None;
        }
        self.lose(pe, Fault::Disconnected { pe }, out);
        match &self.members[pe as usize].seat {
            Seat::Lost(fault) => Some(fault.clone()),
            _ => None,
        }
    }

    /// Handles the loss of the PE `pe`, which the launcher has reported. `why` is the reason.
    pub(crate) fn report_lost(&mut self, pe: u32, why: &str, out: &mut Vec<Action>) {
        let Some(member) = self.members.get(pe as usize) else { return };
        if let Seat::Taken(link) = member.seat {
            out.push(Action::Close(link));
        }
        if matches!(member.seat, Seat::Empty | Seat::Taken(_)) {
            self.lose(pe, Fault::Reported { pe, why: proto::cut(why) }, out);
        }
    }

    /// Fails all pending requests, because the server is stopping.
    pub(crate) fn end(&mut self, out: &mut Vec<Action>) {
        let fault = self.broken.clone().unwrap_or(Fault::Closing);
        self.fail_all(&fault, out);
        self.broken = Some(fault);
    }

    fn enter(
        &mut self,
        pe: u32,
        number: u64,
        collective: Collective,
        label: String,
        blob: Vec<u8>,
        out: &mut Vec<Action>,
    ) -> Result<(), ProtocolError> {
        let member = &mut self.members[pe as usize];
        // By invariant [3], a round that this PE has not entered is either open, or no PE has
        // entered it yet.
        if number != member.entered {
            return Err(ProtocolError::Field { field: "request" });
        }
        member.entered += 1;
        let request = number | ROUND_BIT;
        let at = (number - self.first_round) as usize;
        let fault = self.rounds.get(at).and_then(|round| round.fault.clone());
        if let Some(fault) = fault.or_else(|| self.hopeless(number)) {
            if let Some(round) = self.rounds.get_mut(at) {
                round.present += 1;
            }
            self.answer(pe, &Frame::Failed { request, fault }, out);
            self.forget_finished_rounds();
            return Ok(());
        }
        if at >= MAX_OPEN_ROUNDS {
            return Err(ProtocolError::OutOfPlace { kind: "enter" });
        }
        if at == self.rounds.len() {
            self.rounds.push_back(Round {
                collective,
                label: label.clone(),
                opener: pe,
                blobs: vec![None; self.members.len()],
                present: 0,
                len_bytes: 0,
                fault: None,
            });
        }
        let round = &mut self.rounds[at];
        let call_of = |collective: Collective, label: &str| proto::cut(&format!("{}({label:?})", collective.name()));
        let agrees = round.collective == collective && round.label == label;
        round.present += 1;
        if !agrees {
            let fault = Fault::Mismatch {
                one: round.opener,
                one_call: call_of(round.collective, &round.label),
                other: pe,
                other_call: call_of(collective, &label),
            };
            self.fail_round(at, fault, Some(pe), out);
        } else if self.stored_len_bytes + blob.len() > self.limit_bytes {
            let len_bytes = (self.stored_len_bytes + blob.len()) as u64;
            let fault = Fault::StoreFull { len_bytes, limit_bytes: self.limit_bytes as u64 };
            self.fail_round(at, fault, Some(pe), out);
        } else {
            round.len_bytes += blob.len();
            self.stored_len_bytes += blob.len();
            round.blobs[pe as usize] = Some(blob);
            if round.present == self.members.len() {
                self.complete_round(at, out);
            }
        }
        self.forget_finished_rounds();
        Ok(())
    }

    /// Returns a fault if the round with this number can never complete. There are three possible
    /// reasons: a PE is lost, a PE left before it entered this round, or the server is stopping.
    fn hopeless(&self, number: u64) -> Option<Fault> {
        let left = || self.first_left.filter(|(entered, _)| *entered <= number).map(|(_, pe)| Fault::Left { pe });
        self.broken.clone().or_else(left)
    }

    fn complete_round(&mut self, at: usize, out: &mut Vec<Action>) {
        let request = (self.first_round + at as u64) | ROUND_BIT;
        let round = &mut self.rounds[at];
        let mut all = Vec::with_capacity(round.len_bytes + 32 * round.blobs.len());
        if round.collective == Collective::Exchange {
            for blob in &mut round.blobs {
                Frame::Part { request, blob: blob.take().unwrap_or_default() }.encode(&mut all);
            }
        }
        Frame::Done { request }.encode(&mut all);
        self.stored_len_bytes -= std::mem::take(&mut round.len_bytes);
        let all: Arc<[u8]> = all.into();
        for pe in 0..self.members.len() as u32 {
            self.tell(pe, &all, out);
        }
    }

    /// Ends the open round (collective call) `rounds[at]` with a fault, and sends the fault to all
    /// PEs that have entered the round. Also sends the fault to `newcomer`. `newcomer` is the PE
    /// whose call caused the fault, or `None` if no call caused the fault.
    fn fail_round(&mut self, at: usize, fault: Fault, newcomer: Option<u32>, out: &mut Vec<Action>) {
        let request = (self.first_round + at as u64) | ROUND_BIT;
        let round = &mut self.rounds[at];
        let waiting: Vec<u32> =
            (0..).zip(&round.blobs).filter(|(_, blob)| blob.is_some()).map(|(pe, _)| pe).chain(newcomer).collect();
        round.blobs.fill(None);
        self.stored_len_bytes -= std::mem::take(&mut round.len_bytes);
        round.fault = Some(fault.clone());
        let failed = bytes(&Frame::Failed { request, fault });
        for pe in waiting {
            self.tell(pe, &failed, out);
        }
    }

    fn forget_finished_rounds(&mut self) {
        while self.rounds.front().is_some_and(|round| round.present == self.members.len()) {
            self.rounds.pop_front();
            self.first_round += 1;
        }
    }

    fn put(&mut self, pe: u32, request: u64, key: String, value: Vec<u8>, out: &mut Vec<Action>) {
        let old_len_bytes = self.store.get(&key).map_or(0, |old| old.len() + key.len());
        let len_bytes = self.stored_len_bytes - old_len_bytes + value.len() + key.len();
        if len_bytes > self.limit_bytes {
            let fault = Fault::StoreFull { len_bytes: len_bytes as u64, limit_bytes: self.limit_bytes as u64 };
            return self.answer(pe, &Frame::Failed { request, fault }, out);
        }
        self.stored_len_bytes = len_bytes;
        for (waiter, request) in self.awaited.remove(&key).unwrap_or_default() {
            self.answer(waiter, &Frame::Value { request, value: value.clone() }, out);
        }
        self.store.insert(key, value);
        self.answer(pe, &Frame::Done { request }, out);
    }

    fn get(&mut self, pe: u32, request: u64, key: String, wait: bool, out: &mut Vec<Action>) {
        let answer = match (self.store.get(&key), self.broken.clone()) {
            (Some(value), _) => Frame::Value { request, value: value.clone() },
            (None, _) if !wait => Frame::Absent { request },
            (None, Some(fault)) => Frame::Failed { request, fault },
            (None, None) => return self.awaited.entry(key).or_default().push((pe, request)),
        };
        self.answer(pe, &answer, out);
    }

    /// Cancels a request whose deadline has passed. Sends nothing if the request was already
    /// answered.
    fn cancel(&mut self, pe: u32, request: u64, out: &mut Vec<Action>) {
        let missing = if request == JOIN_REQUEST {
            if !self.joining.contains(&pe) {
                return;
            }
            self.joining.retain(|joining| *joining != pe);
            self.who(|member| member.seat == Seat::Empty)
        } else if request & ROUND_BIT != 0 {
            let number = request & !ROUND_BIT;
            let at = number.checked_sub(self.first_round).map(|at| at as usize);
            match at.and_then(|at| self.rounds.get(at)) {
                Some(round) if round.fault.is_none() && round.present < self.members.len() => {
                    self.who(|member| member.entered <= number)
                }
                _ => return,
            }
        } else {
            let mut found = false;
            self.awaited.retain(|_, waiters| {
                let before = waiters.len();
                waiters.retain(|waiter| *waiter != (pe, request));
                found |= waiters.len() < before;
                !waiters.is_empty()
            });
            if !found {
                return;
            }
            Vec::new()
        };
        self.members[pe as usize].in_vain.clone_from(&missing);
        self.answer(pe, &Frame::Late { request, missing }, out);
    }

    /// Ends the job. Notifies every PE, even PEs without a pending request. Only the first call has
    /// an effect.
    fn abort(&mut self, pe: u32, code: u8, out: &mut Vec<Action>) {
        if self.aborted.is_some() {
            return;
        }
        self.aborted = Some((pe, code));
        let aborted = bytes(&Frame::Aborted { pe, code });
        for pe in 0..self.members.len() as u32 {
            self.tell(pe, &aborted, out);
        }
    }

    fn leave(&mut self, pe: u32, out: &mut Vec<Action>) {
        let member = &mut self.members[pe as usize];
        let Seat::Taken(link) = member.seat else { return };
        out.push(Action::Close(link));
        if !member.in_vain.is_empty() {
            return self.lose(pe, Fault::Left { pe }, out);
        }
        member.seat = Seat::Left;
        let entered = member.entered;
        self.first_left = self.first_left.into_iter().chain([(entered, pe)]).min();
        self.stop_waiting(pe);
        for at in 0..self.rounds.len() {
            if self.first_round + at as u64 >= entered && self.rounds[at].fault.is_none() {
                self.fail_round(at, Fault::Left { pe }, None, out);
            }
        }
        if !self.joining.is_empty() {
            self.fail_joining(&Fault::Left { pe }, out);
        }
    }

    /// Marks a PE as lost, notifies all PEs of the loss, and fails all waits. The reported cause is
    /// the first of these that exists:
    ///
    /// - the PEs that were missing when the lost PE's last request timed out
    /// - the PE that the lost PE had named as the cause
    /// - `fault`
    ///
    /// The waits fail with the first loss of the job, because later losses may be consequences of
    /// it.
    fn lose(&mut self, pe: u32, fault: Fault, out: &mut Vec<Action>) {
        let members = &mut self.members;
        let mut missing = std::mem::take(&mut members[pe as usize].in_vain);
        missing.retain(|missing| *missing != pe);
        if missing.is_empty() {
            missing.extend(members[pe as usize].blames.take());
        }
        let fault = if missing.is_empty() { fault } else { Fault::GaveUp { pe, missing } };
        members[pe as usize].seat = Seat::Lost(fault.clone());
        // PEs without pending requests are notified too, because the server may have died by the
        // time of their next request.
        let lost = bytes(&Frame::Lost { fault: fault.clone() });
        for pe in 0..self.members.len() as u32 {
            self.tell(pe, &lost, out);
        }
        let first = self.broken.get_or_insert(fault).clone();
        self.fail_all(&first, out);
    }

    fn stop_waiting(&mut self, pe: u32) {
        self.joining.retain(|joining| *joining != pe);
        self.awaited.retain(|_, waiters| {
            waiters.retain(|(waiter, _)| *waiter != pe);
            !waiters.is_empty()
        });
    }

    fn fail_all(&mut self, fault: &Fault, out: &mut Vec<Action>) {
        self.fail_joining(fault, out);
        for at in 0..self.rounds.len() {
            if self.rounds[at].fault.is_none() {
                self.fail_round(at, fault.clone(), None, out);
            }
        }
        for (pe, request) in std::mem::take(&mut self.awaited).into_values().flatten() {
            self.answer(pe, &Frame::Failed { request, fault: fault.clone() }, out);
        }
    }

    fn fail_joining(&mut self, fault: &Fault, out: &mut Vec<Action>) {
        let failed = bytes(&Frame::Failed { request: JOIN_REQUEST, fault: fault.clone() });
        for pe in std::mem::take(&mut self.joining) {
            self.tell(pe, &failed, out);
        }
    }

    fn who(&self, is_missing: impl Fn(&Member) -> bool) -> Vec<u32> {
        (0..).zip(&self.members).filter(|(_, member)| is_missing(member)).map(|(pe, _)| pe).collect()
    }

    fn answer(&self, pe: u32, frame: &Frame, out: &mut Vec<Action>) {
        self.tell(pe, &bytes(frame), out);
    }

    fn tell(&self, pe: u32, bytes: &Arc<[u8]>, out: &mut Vec<Action>) {
        if let Seat::Taken(link) = self.members[pe as usize].seat {
            out.push(Action::Send(link, bytes.clone()));
        }
    }
}

fn done_or(request: u64, fault: Option<Fault>) -> Frame {
    match fault {
        Some(fault) => Frame::Failed { request, fault },
        None => Frame::Done { request },
    }
}

fn bytes(frame: &Frame) -> Arc<[u8]> {
    frame.to_bytes().into()
}

fn send(out: &mut Vec<Action>, link: Link, frame: &Frame) {
    out.push(Action::Send(link, bytes(frame)));
}

#[cfg(test)]
mod tests;
