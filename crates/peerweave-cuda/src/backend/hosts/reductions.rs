//! Reductions and scans of teams whose members are on several hosts. The ranks send their operands
//! as messages, and each rank combines the operands of its result in the order of ranks. Reductions
//! that first combine operands within each host are in `rails.rs`.

use peerweave_collectives::LINE_BYTES;
use peerweave_core::Error;
use peerweave_core::backend::{Collective, CollectiveKind};
use peerweave_types::ReduceOp;

use super::combine::{Operands, PIECE, Reduction, is_gathered};
use crate::backend::enqueue::{Enqueue, Source};
use crate::backend::teams::{Span, TeamOf};
use crate::collective::Message;

impl Enqueue<'_> {
    /// Enqueues a reduction or a scan. The members of the team are on several hosts. `from` is the
    /// address of this rank's operand. If this rank gets a result, `to` is the address of the
    /// result.
    pub(crate) fn reduce_between(
        &mut self,
        team: &TeamOf,
        span: &Span,
        op: &Collective,
        mut from: u64,
        to: u64,
    ) -> Result<Source, Error> {
        // Loads the kernel before this function enqueues any work. A load may wait for work of the
        // device, and work of this call may wait for a peer.
        self.combiner(op.dtype)?;
        let mut reduction = Reduction { dtype: op.dtype, op: op.op };
        let n = team.members.len();
        let parts = if op.kind == CollectiveKind::ReduceScatter { n } else { 1 };
        if op.count == 0 {
            return Ok(Source::Hosts);
        }
        if op.op == ReduceOp::PreMulSum {
            // Each rank has its own factor, so each rank scales its operand before the exchange.
            let count = parts * op.count;
            let bytes = count * op.dtype.size_bytes();
            let scaled = self.scratch(bytes)?;
            let own = Operands { at: from, stride: bytes, number: 1 };
            self.combine(reduction, own, scaled, count, n, op.scalar)?;
            (from, reduction.op) = (scaled, ReduceOp::Sum);
        }
        let size = op.dtype.size_bytes();
        let (has_several, is_short) = (span.shares_hosts(), is_gathered(op.dtype, op.count));
        match (op.kind, span.rails()) {
            (CollectiveKind::ReduceScatter, Some(rails)) => {
                self.reduce_scatter_by_rails(team, span, rails, reduction, from, to, op.count)?;
            }
            (CollectiveKind::ReduceScatter, None) => {
                self.reduce_scatter_between(team, span, reduction, from, to, op.count)?;
            }
            (CollectiveKind::AllReduce, _) if is_short && has_several => {
                self.all_reduce_by_hosts(team, span, reduction, from, to, op.count)?;
            }
            (CollectiveKind::AllReduce, Some(rails)) => {
                self.all_reduce_by_rails(team, span, rails, reduction, from, to, op.count)?;
            }
            (CollectiveKind::AllReduce, None) if !is_short => {
                self.all_reduce_in_parts(team, span, reduction, from, to, op.count)?;
            }
            (CollectiveKind::Reduce, _) if has_several => {
                self.reduce_by_hosts(team, span, reduction, from, to, op.count, op.root.index())?;
            }
            (kind, _) => {
                // Number of ranks, from rank 0 on, whose operands this rank combines.
                let wanted = match kind {
                    CollectiveKind::AllReduce => n,
                    CollectiveKind::Reduce if op.root.index() == team.me => n,
                    CollectiveKind::Scan => team.me + 1,
                    CollectiveKind::ExclusiveScan => team.me,
                    _ => 0,
                };
                let is_wanted_by = |rank: usize| match kind {
                    CollectiveKind::AllReduce => true,
                    CollectiveKind::Reduce => rank == op.root.index(),
                    CollectiveKind::Scan => rank >= team.me,
                    _ => rank > team.me,
                };
                let piece = (PIECE / (n * size)).max(1);
                let gathered = if wanted > 0 { self.scratch(wanted * size * piece.min(op.count))? } else { 0 };
                for start in (0..op.count).step_by(piece) {
                    let count = piece.min(op.count - start);
                    let (skipped, bytes) = ((start * size) as u64, count * size);
                    let sends = (0..n).filter(|rank| is_wanted_by(*rank));
                    let sends = sends.map(|rank| Message::send(rank, from + skipped, bytes));
                    let receives = (0..wanted).map(|rank| Message::receive(rank, gathered + (rank * bytes) as u64, bytes));
                    let messages: Vec<Message> = sends.chain(receives).collect();
                    self.messages_between(team, span, &messages)?;
                    if wanted > 0 {
                        let operands = Operands { at: gathered, stride: bytes, number: wanted };
                        self.combine(reduction, operands, to + skipped, count, n, 0)?;
                    }
                }
            }
        }
        Ok(Source::Hosts)
    }

    /// Enqueues a reduce_scatter. Rank `r` receives part `r` of every rank's operand, and combines
    /// these parts. Long parts are divided into pieces.
    fn reduce_scatter_between(
        &mut self,
        team: &TeamOf,
        span: &Span,
        reduction: Reduction,
        from: u64,
        to: u64,
        part: usize,
    ) -> Result<(), Error> {
        let (n, size) = (team.members.len(), reduction.dtype.size_bytes());
        let piece = (PIECE / (n * size)).max(1);
        let gathered = self.scratch(n * size * piece.min(part))?;
        // An in-place result overwrites no data that this rank must still send, because only this
        // rank needs this part of its operand.
        for start in (0..part).step_by(piece) {
            let count = piece.min(part - start);
            let range = |rank: usize| rank * part + start..rank * part + start + count;
            self.reduce_ranges(team, span, reduction, from, to + (start * size) as u64, gathered, range)?;
        }
        Ok(())
    }

    /// Enqueues an exchange and a reduction: each rank `r` receives the elements `range(r)` of
    /// every rank's operand, and combines them. On this rank, the operand is at address `from`, the
    /// received elements are stored at `gathered`, and the result at `to`.
    #[expect(clippy::too_many_arguments, reason = "a reduction needs all these arguments")]
    fn reduce_ranges(
        &mut self,
        team: &TeamOf,
        span: &Span,
        reduction: Reduction,
        from: u64,
        to: u64,
        gathered: u64,
        range: impl Fn(usize) -> std::ops::Range<usize>,
    ) -> Result<(), Error> {
        let (n, size) = (team.members.len(), reduction.dtype.size_bytes());
        let mine = range(team.me).len();
        let sends = (0..n).map(|rank| {
            let range = range(rank);
            Message::send(rank, from + (range.start * size) as u64, range.len() * size)
        });
        let receives = (0..n).map(|rank| Message::receive(rank, gathered + (rank * mine * size) as u64, mine * size));
        let messages: Vec<Message> = sends.chain(receives).collect();
        self.messages_between(team, span, &messages)?;
        self.combine(reduction, Operands { at: gathered, stride: mine * size, number: n }, to, mine, n, 0)
    }

    /// Enqueues an all_reduce in two steps. First, rank `r` receives part `r` of every rank's
    /// operand, and combines these parts. Then each rank sends its combined part to all other
    /// ranks.
    fn all_reduce_in_parts(
        &mut self,
        team: &TeamOf,
        span: &Span,
        reduction: Reduction,
        from: u64,
        to: u64,
        all: usize,
    ) -> Result<(), Error> {
        let (n, size) = (team.members.len(), reduction.dtype.size_bytes());
        // The length of a part is a multiple of the 16-byte lines of the kernels.
        let per_line = LINE_BYTES / size;
        let piece = (PIECE / size).next_multiple_of(per_line);
        let longest = all.min(piece).div_ceil(n).next_multiple_of(per_line);
        let gathered = self.scratch(n * longest * size)?;
        for start in (0..all).step_by(piece) {
            let end = all.min(start + piece);
            let part = (end - start).div_ceil(n).next_multiple_of(per_line);
            let range = |rank: usize| (start + rank * part).min(end)..(start + (rank + 1) * part).min(end);
            let at = |rank: usize| to + (range(rank).start * size) as u64;
            let bytes = |rank: usize| range(rank).len() * size;
            self.reduce_ranges(team, span, reduction, from, at(team.me), gathered, range)?;
            let others = || (0..n).filter(|rank| *rank != team.me);
            let sends = others().map(|rank| Message::send(rank, at(team.me), bytes(team.me)));
            let receives = others().map(|rank| Message::receive(rank, at(rank), bytes(rank)));
            let messages: Vec<Message> = sends.chain(receives).collect();
            self.messages_between(team, span, &messages)?;
        }
        Ok(())
    }
}
