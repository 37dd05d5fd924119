//! Barriers, and collectives that move data without reducing it, for teams whose members are on
//! several hosts.

use peerweave_core::Error;
use peerweave_core::backend::{Collective, CollectiveKind};

use super::messages::{check, first_of};
use crate::backend::enqueue::{Enqueue, Source};
use crate::backend::teams::{Span, TeamOf};
use crate::collective::Message;

/// Length of each message that a barrier sends between hosts, in bytes.
const TOKEN: usize = 16;

impl Enqueue<'_> {
    /// Enqueues a barrier of a team on several hosts, in three steps: a barrier among the ranks of
    /// each host, messages among the first ranks of the hosts, and again a barrier among the ranks
    /// of each host.
    pub(crate) fn meet_between(&mut self, team: &TeamOf, span: &Span) -> Result<Source, Error> {
        check(self, span)?;
        self.meet_inside(team, span)?;
        if span.leaders().any(|leader| leader == team.me) {
            let tokens = self.scratch(TOKEN * (span.n_hosts() + 1))?;
            let mut messages = Vec::with_capacity(2 * span.n_hosts());
            for (number, leader) in span.leaders().enumerate().filter(|(_, leader)| *leader != team.me) {
                messages.push(Message::send(leader, tokens, TOKEN));
                messages.push(Message::receive(leader, tokens + ((number + 1) * TOKEN) as u64, TOKEN));
            }
            // These messages are all between hosts.
            self.remote_only(team, &messages)?;
        }
        self.meet_inside(team, span)?;
        Ok(Source::Hosts)
    }

    fn meet_inside(&mut self, team: &TeamOf, span: &Span) -> Result<(), Error> {
        if span.local().len() > 1 {
            let enqueued = self.inside(span)?.barrier(self.stream);
            self.enqueued(team, enqueued)?;
        }
        Ok(())
    }

    /// Enqueues a collective without a reduction for a team on several hosts. Each part has
    /// `op.count` elements. `from` and `to` are the device addresses of this rank's operand and
    /// result. `from` is ignored on a rank without an operand, and `to` on a rank without a result.
    pub(crate) fn exchange_between(
        &mut self,
        team: &TeamOf,
        span: &Span,
        op: &Collective,
        from: u64,
        to: u64,
    ) -> Result<Source, Error> {
        let (root, part) = (op.root.index(), op.count * op.dtype.size_bytes());
        match op.kind {
            CollectiveKind::Broadcast => self.broadcast_between(team, span, from, to, part, root),
            CollectiveKind::AllGather => self.all_gather_between(team, span, from, to, part),
            CollectiveKind::AllToAll => self.all_to_all_between(team, span, from, to, part),
            CollectiveKind::Gather if team.me == root => {
                let at = |rank: usize| to + (rank * part) as u64;
                let is_there = from == at(team.me);
                let ranks = (0..team.members.len()).filter(|rank| !(is_there && *rank == team.me));
                let mut messages: Vec<Message> = ranks.map(|rank| Message::receive(rank, at(rank), part)).collect();
                if !is_there {
                    messages.push(Message::send(root, from, part));
                }
                self.messages_between(team, span, &messages)
            }
            CollectiveKind::Scatter if team.me == root => {
                let at = |rank: usize| from + (rank * part) as u64;
                let is_there = to == at(team.me);
                let ranks = (0..team.members.len()).filter(|rank| !(is_there && *rank == team.me));
                let mut messages: Vec<Message> = ranks.map(|rank| Message::send(rank, at(rank), part)).collect();
                if !is_there {
                    messages.push(Message::receive(root, to, part));
                }
                self.messages_between(team, span, &messages)
            }
            CollectiveKind::Gather => self.messages_between(team, span, &[Message::send(root, from, part)]),
            kind => {
                assert_eq!(kind, CollectiveKind::Scatter, "peerweave-cuda bug: expected a scatter");
                self.messages_between(team, span, &[Message::receive(root, to, part)])
            }
        }
    }

    /// Enqueues a broadcast to several hosts. The root sends its data to one rank of each other
    /// host. Then a broadcast runs within each host.
    fn broadcast_between(
        &mut self,
        team: &TeamOf,
        span: &Span,
        from: u64,
        to: u64,
        bytes: usize,
        root: usize,
    ) -> Result<Source, Error> {
        let mine = first_of(span.local(), root);
        if team.me == root {
            let messages: Vec<Message> = span.others().map(|(_, ranks)| Message::send(ranks[0], from, bytes)).collect();
            self.remote_only(team, &messages)?;
        } else if team.me == mine {
            self.remote_only(team, &[Message::receive(root, to, bytes)])?;
        }
        let own = if team.me == root { from } else { to };
        match span.inside_rank(mine) {
            Some(inside_root) if span.local().len() > 1 => {
                // SAFETY: the ranges stay allocated until the stream has passed the call: they are
                // recorded or held.
                let enqueued = unsafe { self.inside(span)?.broadcast(self.stream, own, to, bytes as u64, inside_root) };
                self.enqueued(team, enqueued)?;
            }
            _ => self.copy(to, own, bytes)?,
        }
        Ok(Source::Hosts)
    }

    /// Enqueues an all_gather in a team whose members are on several hosts. Each part has `part`
    /// bytes.
    pub(crate) fn all_gather_between(
        &mut self,
        team: &TeamOf,
        span: &Span,
        from: u64,
        to: u64,
        part: usize,
    ) -> Result<Source, Error> {
        let at = |rank: usize| to + (rank * part) as u64;
        if span.rails().is_some() {
            self.all_gather_by_rails(team, span, from, to, part)?;
            return Ok(Source::Hosts);
        }
        let is_there = from == at(team.me);
        let ranks = || (0..team.members.len()).filter(|rank| !(is_there && *rank == team.me));
        let sends = ranks().map(|rank| Message::send(rank, from, part));
        let receives = ranks().map(|rank| Message::receive(rank, at(rank), part));
        let messages: Vec<Message> = sends.chain(receives).collect();
        self.messages_between(team, span, &messages)
    }

    /// Enqueues an all_to_all in a team whose members are on several hosts. Each part has `part`
    /// bytes.
    pub(crate) fn all_to_all_between(
        &mut self,
        team: &TeamOf,
        span: &Span,
        from: u64,
        to: u64,
        part: usize,
    ) -> Result<Source, Error> {
        let n = team.members.len();
        // In place, a part that arrives would overwrite a part that this rank has not sent yet.
        let from = if from == to { self.copied(from, n * part)? } else { from };
        let at = |rank: usize| (rank * part) as u64;
        let sends = (0..n).map(|rank| Message::send(rank, from + at(rank), part));
        let receives = (0..n).map(|rank| Message::receive(rank, to + at(rank), part));
        let messages: Vec<Message> = sends.chain(receives).collect();
        self.messages_between(team, span, &messages)
    }
}
