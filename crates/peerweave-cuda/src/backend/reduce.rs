//! Reductions, by the kernels of `collective`: an all-reduce gives every rank all results, and the
//! other reductions take what they need of them.

use peerweave_core::Error;
use peerweave_core::backend::{Collective, CollectiveKind};
use peerweave_types::ReduceOp;

use super::enqueue::Enqueue;
use super::error::{portable, unsupported};
use super::ticket::Source;

impl Enqueue<'_> {
    /// Enqueues a reduction in a team of several ranks.
    pub(super) fn reduce(&mut self, op: &Collective) -> Result<Source, Error> {
        let (state, call) = (self.state, op.kind.name());
        let Some(collectives) = state.collectives(op.team) else {
            return Err(unsupported(call, "the heap has no room for the reductions of this team: ask for a larger heap"));
        };
        let ranks = state.ranks(op.team);
        let part = op.count * op.dtype.size_bytes();
        let scatters = op.kind == CollectiveKind::ReduceScatter;
        let count = if scatters { op.count * ranks.members.len() } else { op.count };
        let bytes = count * op.dtype.size_bytes();
        let send = op.send.unwrap_or_else(|| panic!("peerweave-core bug: a {call} without an operand"));
        let from = self.reading(send, bytes)?;
        // Ranks that get no result, or a part of it, have all results in memory of their own.
        let scratch = if scatters || op.recv.is_none() { Some(self.scratch(bytes)?) } else { None };
        let (to, staged) = match op.recv {
            Some(recv) => self.writing(recv, part)?,
            None => (0, None),
        };
        let all = scratch.unwrap_or(to);
        let reduced = if op.op == ReduceOp::PreMulSum {
            // SAFETY: both ranges have that many elements, which stay allocated until the stream
            // has passed the call: they are noted or held. The core has checked that nothing
            // overlaps.
            unsafe { collectives.all_reduce_scaled(self.stream, from, all, count as u64, op.dtype, op.scalar) }
        } else {
            // SAFETY: as above.
            unsafe { collectives.all_reduce(self.stream, from, all, count as u64, op.dtype, op.op) }
        };
        reduced.map_err(|error| match state.poisoned(call, state.team_name(op.team)) {
            Err(poisoned) => poisoned,
            Ok(()) => portable(call, state.team_name(op.team), error),
        })?;
        if scatters {
            self.copy(to, all + (ranks.me * part) as u64, part)?;
        }
        self.written(staged)?;
        Ok(Source::Kernel)
    }
}
