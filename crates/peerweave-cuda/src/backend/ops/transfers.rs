//! Sends and receives, and collectives whose parts have different lengths.

use peerweave_core::Error;
use peerweave_core::backend::{Collective, CollectiveKind, Direction, Op, Place, PointToPoint};
use peerweave_types::Rank;

use super::collectives::Path;
use super::order::order;
use crate::backend::enqueue::{Enqueue, Source};
use crate::backend::teams::{MessageRecord, TeamOf};
use crate::collective::Message;

impl Enqueue<'_> {
    /// Enqueues the sends and receives of a group. All sends and receives of one team are enqueued
    /// together, so that they run at the same time.
    pub(super) fn transfers<'o>(&mut self, ops: impl Iterator<Item = &'o PointToPoint> + Clone) -> Result<Source, Error> {
        let mut source = Source::Copy;
        for (number, first) in ops.clone().enumerate() {
            if ops.clone().take(number).any(|earlier| earlier.team == first.team) {
                continue;
            }
            let team = &*self.state.team(self.call, first.team)?;
            self.state.poisoned(self.call, team.name())?;
            self.kernels_of(team).map(drop)?;
            let _order = order(&team.order, self.call, self.stream, self.capturing)?;
            let (mut messages, mut results) = self.state.take_lists();
            for op in ops.clone().filter(|op| op.team == first.team) {
                let (direction, peer) = (op.direction, op.peer.index());
                let record = MessageRecord { direction, peer, dtype: op.dtype, count: op.count, collective: None };
                self.compared(team, |calls| calls.write_message(team, &record));
                let bytes = op.count * op.dtype.size_bytes();
                messages.push(match op.direction {
                    Direction::Send => Message::Send { to: op.peer, at: self.reading(op.at, bytes)?, bytes: bytes as u64 },
                    Direction::Receive => {
                        let (at, staged) = self.writing(op.at, bytes)?;
                        results.extend(staged);
                        Message::Receive { from: op.peer, at, bytes: bytes as u64 }
                    }
                });
            }
            source = match &team.span {
                Some(span) => self.transfers_between(team, span, &messages)?,
                None => self.messages(team, &messages)?,
            };
            results.drain(..).try_for_each(|staged| self.written(Some(staged)))?;
            self.state.give_back_lists(messages, results);
        }
        Ok(source)
    }

    fn messages(&mut self, team: &TeamOf, messages: &[Message]) -> Result<Source, Error> {
        let collectives = match self.kernels_of(team)? {
            Path::Kernels(collectives) => collectives,
            Path::Hosts(span) => return self.messages_between(team, span, messages),
        };
        // SAFETY: the ranges stay allocated until the stream has passed the call: they are recorded
        // or held. The core has checked that results overlap nothing.
        let enqueued = unsafe { collectives.messages(self.stream, messages) };
        self.enqueued(team, enqueued)
    }

    /// Enqueues a collective whose parts have different lengths. Each part is a message from one
    /// rank to another.
    pub(super) fn vector(&mut self, team: &TeamOf, op: &Collective) -> Result<Source, Error> {
        let counts = op.counts.as_ref().unwrap_or_else(|| panic!("peerweave-core bug: {} has no counts", self.call));
        let size = op.dtype.size_bytes();
        let bytes = |offsets: &[usize], counts: &[usize]| {
            let parts = offsets.iter().zip(counts).filter(|(_, count)| **count > 0);
            size * parts.map(|(offset, count)| offset + count).max().unwrap_or(0)
        };
        let sent = bytes(&counts.send_offsets, &counts.send_counts);
        let mut from = op.send.map_or(Ok(0), |send| self.reading(send, sent))?;
        if op.kind == CollectiveKind::AllToAllV && op.send == op.recv {
            // In place, a part that arrives would overwrite a part that this rank has not sent yet.
            let scratch = self.scratch(sent)?;
            self.copy(scratch, from, sent)?;
            from = scratch;
        }
        let received = bytes(&counts.recv_offsets, &counts.recv_counts);
        // The bytes between the parts of the result must not change. So a result in memory of the
        // host is first copied to the pinned memory.
        let before = match op.recv {
            Some(recv @ Place::Private(_)) => Some(self.reading(recv, received)?),
            _ => None,
        };
        let (to, staged) = op.recv.map_or(Ok((0, None)), |recv| self.writing(recv, received))?;
        if let Some(before) = before {
            self.copy(to, before, received)?;
        }
        let part =
            |offset: usize, count: usize| if count == 0 { (0, 0) } else { ((offset * size) as u64, (count * size) as u64) };
        let sent_to = |rank: usize| part(counts.send_offsets[rank], counts.send_counts[rank]);
        let received_from = |rank: usize| part(counts.recv_offsets[rank], counts.recv_counts[rank]);
        // In place, the part that this rank sends to itself is already in the result.
        let is_there = from + sent_to(team.me).0 == to + received_from(team.me).0;
        let is_message =
            |rank: usize, bytes: u64| op.kind == CollectiveKind::AllToAllV || (bytes > 0 && !(is_there && rank == team.me));
        let (mut messages, results) = self.state.take_lists();
        let record = |direction, peer: usize, count| {
            let record = MessageRecord { direction, peer, dtype: op.dtype, count, collective: Some(op.kind) };
            self.compared(team, |calls| calls.write_message(team, &record));
        };
        for rank in 0..team.members.len() {
            let ((at, bytes), to) = (sent_to(rank), Rank::new(rank as u32));
            if is_message(rank, bytes) {
                record(Direction::Send, rank, counts.send_counts[rank]);
                messages.push(Message::Send { to, at: from + at, bytes });
            }
        }
        for rank in 0..team.members.len() {
            let ((at, bytes), from) = (received_from(rank), Rank::new(rank as u32));
            if is_message(rank, bytes) {
                record(Direction::Receive, rank, counts.recv_counts[rank]);
                messages.push(Message::Receive { from, at: to + at, bytes });
            }
        }
        let source = self.messages(team, &messages)?;
        self.state.give_back_lists(messages, results);
        self.written(staged)?;
        Ok(source)
    }
}

/// Returns the sends and receives among the operations of a group.
pub(super) fn transfers_of(ops: &[Op]) -> impl Iterator<Item = &PointToPoint> + Clone {
    ops.iter().filter_map(|op| if let Op::PointToPoint(op) = op { Some(op) } else { None })
}
