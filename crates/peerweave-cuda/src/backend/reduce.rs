//! Reductions by the kernels of `collective`. A reduction that has no kernel yet runs an
//! all-reduce, which computes all results on every rank, and uses a part of them.

use peerweave_core::Error;
use peerweave_core::backend::{Collective, CollectiveKind};
use peerweave_types::ReduceOp;

use super::enqueue::Enqueue;
use super::error::unsupported;
use super::teams::TeamOf;
use super::ticket::Source;

impl Enqueue<'_> {
    /// Enqueues a reduction in a team of several ranks.
    pub(super) fn reduce(&mut self, team: &TeamOf, op: &Collective) -> Result<Source, Error> {
        let call = op.kind.name();
        let Some(collectives) = &team.collectives else {
            return Err(unsupported(
                call,
                "the symmetric heap has no room for the staging memory of this team's reductions; set a larger heap size",
            ));
        };
        let n = collectives.members().len();
        let part = op.count * op.dtype.size_bytes();
        let scatters = op.kind == CollectiveKind::ReduceScatter;
        let count = if scatters { op.count * n } else { op.count };
        let bytes = count * op.dtype.size_bytes();
        let send = op.send.unwrap_or_else(|| panic!("peerweave-core bug: {call} has no operand"));
        let from = self.reading(send, bytes)?;
        let (to, staged) = match op.recv {
            Some(recv) => self.writing(recv, part)?,
            None => (0, None),
        };
        if scatters && op.op != ReduceOp::PreMulSum && part as u64 <= collectives.most_part_bytes() {
            // SAFETY: the ranges have one part for each rank and one part. They are recorded or
            // held, so they stay allocated until the stream has passed the call. `peerweave-core`
            // has checked that they do not overlap except in the in-place form.
            let enqueued = unsafe { collectives.reduce_scatter(self.stream, from, to, op.count as u64, op.dtype, op.op) };
            self.enqueued(team, enqueued)?;
            self.written(staged)?;
            return Ok(Source::Kernel);
        }
        // Ranks that need no result, or only a part of it, store all results in temporary memory.
        let scratch = if scatters || op.recv.is_none() { Some(self.scratch(bytes)?) } else { None };
        let all = scratch.unwrap_or(to);
        let enqueued = if op.op == ReduceOp::PreMulSum {
            // SAFETY: both ranges have that many elements. They are recorded or held, so they stay
            // allocated until the stream has passed the call. `peerweave-core` has checked that
            // nothing overlaps.
            unsafe { collectives.all_reduce_scaled(self.stream, from, all, count as u64, op.dtype, op.scalar) }
        } else {
            // SAFETY: as above.
            unsafe { collectives.all_reduce(self.stream, from, all, count as u64, op.dtype, op.op) }
        };
        self.enqueued(team, enqueued)?;
        if scatters {
            self.copy(to, all + (collectives.rank().index() * part) as u64, part)?;
        }
        self.written(staged)?;
        Ok(Source::Kernel)
    }
}
