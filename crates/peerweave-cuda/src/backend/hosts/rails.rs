//! Collectives of teams on several hosts that first combine or divide data within each host, so
//! that less data crosses the network.
//!
//! If all hosts have the same number of ranks, a *rail* consists of one rank of each host: the
//! ranks at the same position within their hosts. Peerweave's kernels divide the data among the
//! rails, and the rails exchange their parts at the same time.
//!
//! A reduction first combines the operands within each host, in the order of ranks. It then
//! combines the results of the hosts, in the order of hosts. So all ranks get the same bits, but
//! floats are combined and rounded in a different order than in a team on one host.

use peerweave_collectives::LINE_BYTES;
use peerweave_core::Error;

use super::combine::{Operands, PIECE, Reduction, is_gathered};
use super::messages::first_of;
use crate::backend::enqueue::Enqueue;
use crate::backend::teams::{Span, TeamOf};
use crate::collective::Message;

impl Enqueue<'_> {
    /// Enqueues an all_reduce among the ranks on this host. Each of these ranks has its operand at
    /// `from` and gets the result at `to`.
    fn all_reduce_inside(
        &mut self,
        team: &TeamOf,
        span: &Span,
        reduction: Reduction,
        from: u64,
        to: u64,
        count: usize,
    ) -> Result<(), Error> {
        let Reduction { dtype, op } = reduction.inside();
        if span.local().len() == 1 {
            return self.copy(to, from, count * dtype.size_bytes());
        }
        // SAFETY: both ranges have `count` elements. They stay allocated until the stream has
        // passed the call: they are recorded or held. They overlap only in in-place forms.
        let enqueued = unsafe { self.inside(span)?.all_reduce(self.stream, from, to, count as u64, dtype, op) };
        self.enqueued(team, enqueued).map(drop)
    }

    /// Enqueues a small all_reduce. The ranks of each host reduce their operands. Then every rank
    /// receives the results of all hosts and combines them.
    pub(super) fn all_reduce_by_hosts(
        &mut self,
        team: &TeamOf,
        span: &Span,
        reduction: Reduction,
        from: u64,
        to: u64,
        count: usize,
    ) -> Result<(), Error> {
        let bytes = count * reduction.dtype.size_bytes();
        if bytes == 0 {
            return Ok(());
        }
        let gathered = self.scratch(span.n_hosts() * bytes)?;
        let at = |host: usize| gathered + (host * bytes) as u64;
        self.all_reduce_inside(team, span, reduction, from, at(span.here()), count)?;
        let (place, here) = (span.place(), span.local().len());
        let mut messages = Vec::new();
        for (host, ranks) in span.others() {
            // Rank `j` of a host receives from rank `j % n` of each other host, where `n` is the
            // number of ranks of that other host.
            let mine = ranks.iter().enumerate().filter(|(other, _)| other % here == place);
            messages.extend(mine.map(|(_, rank)| Message::send(*rank, at(span.here()), bytes)));
            messages.push(Message::receive(ranks[place % ranks.len()], at(host), bytes));
        }
        self.remote_only(team, &messages)?;
        let operands = Operands { at: gathered, stride: bytes, number: span.n_hosts() };
        self.combine(reduction, operands, to, count, team.members.len(), 0)
    }

    /// Enqueues a large all_reduce in three steps: a reduce_scatter within each host, an all_reduce
    /// on each rail, and an all_gather within each host. A rail consists of the ranks at the same
    /// position within their hosts. `rails` is the number of rails, and each rail reduces one part
    /// of the data.
    #[expect(clippy::too_many_arguments, reason = "a reduction needs all these arguments")]
    pub(super) fn all_reduce_by_rails(
        &mut self,
        team: &TeamOf,
        span: &Span,
        rails: usize,
        reduction: Reduction,
        from: u64,
        to: u64,
        count: usize,
    ) -> Result<(), Error> {
        let (dtype, size) = (reduction.dtype, reduction.dtype.size_bytes());
        let per_line = LINE_BYTES / size;
        let piece = (PIECE / size).next_multiple_of(rails * per_line);
        let longest = count.min(piece) / rails / per_line * per_line;
        let mine = self.scratch((longest * size).max(1))?;
        for start in (0..count).step_by(piece) {
            let all = piece.min(count - start);
            let part = all / rails / per_line * per_line;
            let skipped = |elements: usize| ((start + elements) * size) as u64;
            if part > 0 {
                let op = reduction.inside().op;
                // SAFETY: the operand has a part for each rank of this host, and the scratch memory
                // has one part. Both stay allocated until the stream has passed the call.
                let enqueued =
                    unsafe { self.inside(span)?.reduce_scatter(self.stream, from + skipped(0), mine, part as u64, dtype, op) };
                self.enqueued(team, enqueued)?;
                let own = to + skipped(span.place() * part);
                self.all_reduce_on_rail(team, span, reduction, mine, own, part)?;
                let bytes = (part * size) as u64;
                // SAFETY: the result has a part for each rank of this host.
                let enqueued = unsafe { self.inside(span)?.all_gather(self.stream, own, to + skipped(0), bytes) };
                self.enqueued(team, enqueued)?;
            }
            let (done, rest) = (rails * part, all - rails * part);
            self.all_reduce_by_hosts(team, span, reduction, from + skipped(done), to + skipped(done), rest)?;
        }
        Ok(())
    }

    /// Enqueues an all_reduce among the ranks of one rail: the ranks at the same position within
    /// their hosts. Each rank of the rail has its operand at `from`, and gets the result at `to`.
    fn all_reduce_on_rail(
        &mut self,
        team: &TeamOf,
        span: &Span,
        reduction: Reduction,
        from: u64,
        to: u64,
        count: usize,
    ) -> Result<(), Error> {
        let (n, size, hosts) = (team.members.len(), reduction.dtype.size_bytes(), span.n_hosts());
        let per_line = LINE_BYTES / size;
        // With two hosts, gathering all operands sends as many bytes as the algorithm below, and
        // needs only one step.
        if hosts == 2 || is_gathered(reduction.dtype, count) {
            let bytes = count * size;
            let gathered = self.scratch(hosts * bytes)?;
            let at = |host: usize| gathered + (host * bytes) as u64;
            self.copy(at(span.here()), from, bytes)?;
            let rail = span.rail();
            let messages: Vec<Message> = rail
                .flat_map(|(host, rank)| [Message::send(rank, from, bytes), Message::receive(rank, at(host), bytes)])
                .collect();
            self.remote_only(team, &messages)?;
            return self.combine(reduction, Operands { at: gathered, stride: bytes, number: hosts }, to, count, n, 0);
        }
        let part = count.div_ceil(hosts).next_multiple_of(per_line);
        let range = |host: usize| (host * part).min(count)..((host + 1) * part).min(count);
        let bytes = |host: usize| range(host).len() * size;
        let start = |base: u64, host: usize| base + (range(host).start * size) as u64;
        let mine = bytes(span.here());
        let gathered = self.scratch((hosts * mine).max(1))?;
        let at = |host: usize| gathered + (host * mine) as u64;
        self.copy(at(span.here()), start(from, span.here()), mine)?;
        let parts = span.rail().flat_map(|(host, rank)| {
            [Message::send(rank, start(from, host), bytes(host)), Message::receive(rank, at(host), mine)]
        });
        let parts: Vec<Message> = parts.collect();
        self.remote_only(team, &parts)?;
        let operands = Operands { at: gathered, stride: mine, number: hosts };
        self.combine(reduction, operands, start(to, span.here()), range(span.here()).len(), n, 0)?;
        let results = span.rail().flat_map(|(host, rank)| {
            [Message::send(rank, start(to, span.here()), mine), Message::receive(rank, start(to, host), bytes(host))]
        });
        let results: Vec<Message> = results.collect();
        self.remote_only(team, &results)
    }

    /// Enqueues a reduce to the root of a team on several hosts. One rank of each host gets the
    /// reduction of the host's operands, and sends it to the root. The root combines these results.
    #[expect(clippy::too_many_arguments, reason = "a reduction needs all these arguments")]
    pub(super) fn reduce_by_hosts(
        &mut self,
        team: &TeamOf,
        span: &Span,
        reduction: Reduction,
        from: u64,
        to: u64,
        count: usize,
        root: usize,
    ) -> Result<(), Error> {
        let (dtype, size, hosts) = (reduction.dtype, reduction.dtype.size_bytes(), span.n_hosts());
        let (is_root, is_first) = (team.me == root, team.me == first_of(span.local(), root));
        let piece = (PIECE / (hosts * size)).max(1);
        let room = piece.min(count) * size;
        let gathered = if is_first { self.scratch(if is_root { hosts * room } else { room })? } else { from };
        for start in (0..count).step_by(piece) {
            let count = piece.min(count - start);
            let (skipped, bytes) = ((start * size) as u64, count * size);
            let at = |host: usize| gathered + (host * bytes) as u64;
            let here = match (is_root, is_first) {
                (true, _) => at(span.here()),
                (_, true) => gathered,
                // This rank gets no result, so the kernel does not use the address.
                _ => from + skipped,
            };
            if span.local().len() == 1 {
                self.copy(here, from + skipped, bytes)?;
            } else {
                let op = reduction.inside().op;
                let local_root = span.inside_rank(first_of(span.local(), root)).unwrap_or_default();
                // SAFETY: the operand has `count` elements, and so has the result on `local_root`.
                // They stay allocated until the stream has passed the call.
                let enqueued =
                    unsafe { self.inside(span)?.reduce(self.stream, from + skipped, here, count as u64, dtype, op, local_root) };
                self.enqueued(team, enqueued)?;
            }
            if is_root {
                let messages: Vec<Message> =
                    span.others().map(|(host, ranks)| Message::receive(first_of(ranks, root), at(host), bytes)).collect();
                self.remote_only(team, &messages)?;
                let operands = Operands { at: gathered, stride: bytes, number: hosts };
                self.combine(reduction, operands, to + skipped, count, team.members.len(), 0)?;
            } else if is_first && !span.local().contains(&root) {
                self.remote_only(team, &[Message::send(root, gathered, bytes)])?;
            }
        }
        Ok(())
    }

    /// Enqueues a reduce_scatter with parts of `part` elements. A rail consists of one rank of each
    /// host: the ranks at the same position within their hosts. First, the ranks of each host
    /// combine their operands: each rank combines the parts that belong to the ranks of its own
    /// rail. Then the ranks of each rail exchange these partial results. Finally, each rank
    /// combines the partial results for its own part.
    #[expect(clippy::too_many_arguments, reason = "a reduction needs all these arguments")]
    pub(super) fn reduce_scatter_by_rails(
        &mut self,
        team: &TeamOf,
        span: &Span,
        rails: usize,
        reduction: Reduction,
        from: u64,
        to: u64,
        part: usize,
    ) -> Result<(), Error> {
        let (n, size, hosts) = (team.members.len(), reduction.dtype.size_bytes(), span.n_hosts());
        let piece = (PIECE / (n * size)).max(1);
        let room = piece.min(part) * size;
        let (gathered, partial) = (self.scratch(n * room)?, self.scratch(hosts * room)?);
        for start in (0..part).step_by(piece) {
            let count = piece.min(part - start);
            let bytes = count * size;
            // Each rank of this host gets the parts for the ranks of its rail from each rank of
            // this host.
            let mut messages = Vec::with_capacity(2 * n);
            for (position, rank) in span.local().iter().enumerate() {
                for host in 0..hosts {
                    let wanted = span.at(host, position);
                    messages.push(Message::send(*rank, from + ((wanted * part + start) * size) as u64, bytes));
                    messages.push(Message::receive(*rank, gathered + ((position * hosts + host) * bytes) as u64, bytes));
                }
            }
            self.messages_between(team, span, &messages)?;
            let operands = Operands { at: gathered, stride: hosts * bytes, number: rails };
            self.combine(reduction.inside(), operands, partial, hosts * count, n, 0)?;
            let at = |base: u64, host: usize| base + (host * bytes) as u64;
            self.copy(at(gathered, span.here()), at(partial, span.here()), bytes)?;
            let rail = span.rail();
            let messages: Vec<Message> = rail
                .flat_map(|(host, rank)| {
                    [Message::send(rank, at(partial, host), bytes), Message::receive(rank, at(gathered, host), bytes)]
                })
                .collect();
            self.remote_only(team, &messages)?;
            let operands = Operands { at: gathered, stride: bytes, number: hosts };
            self.combine(reduction, operands, to + (start * size) as u64, count, n, 0)?;
        }
        Ok(())
    }

    /// Enqueues an all_gather. A part has `part` bytes. A rail consists of the ranks at the same
    /// position within their hosts. First, the ranks of each rail exchange their parts. Then the
    /// ranks of each host exchange the received parts.
    pub(super) fn all_gather_by_rails(
        &mut self,
        team: &TeamOf,
        span: &Span,
        from: u64,
        to: u64,
        part: usize,
    ) -> Result<(), Error> {
        let at = |rank: usize| to + (rank * part) as u64;
        self.copy(at(team.me), from, part)?;
        let rail =
            span.rail().flat_map(|(_, rank)| [Message::send(rank, at(team.me), part), Message::receive(rank, at(rank), part)]);
        let rail: Vec<Message> = rail.collect();
        self.remote_only(team, &rail)?;
        let mut messages = Vec::with_capacity(2 * team.members.len());
        for (position, rank) in span.local().iter().enumerate().filter(|(_, rank)| **rank != team.me) {
            for host in 0..span.n_hosts() {
                messages.push(Message::send(*rank, at(span.at(host, span.place())), part));
                messages.push(Message::receive(*rank, at(span.at(host, position)), part));
            }
        }
        self.messages_between(team, span, &messages).map(drop)
    }
}
