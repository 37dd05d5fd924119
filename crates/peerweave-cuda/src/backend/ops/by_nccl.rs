//! Carries out the collectives for which the route table chooses NCCL.

use peerweave_core::Error;
use peerweave_core::backend::{Collective, CollectiveKind, Place, TeamId};

use crate::backend::enqueue::{Enqueue, Source};
use crate::backend::teams::TeamOf;
use crate::nccl::Call;
use crate::route::{Provider, Query};

impl Enqueue<'_> {
    /// Returns whether NCCL, instead of Peerweave's kernels, carries out a collective of a team.
    /// All ranks of the team get the same result.
    pub(super) fn is_by_nccl(&self, team: &TeamOf, op: &Collective) -> bool {
        let nccl = &self.state.nccl;
        if !nccl.is_ready() || op.special.is_some() || op.counts.is_some() {
            return false;
        }
        let query = Query::new(op.kind, op.dtype, op.count as u64).reduction(op.op);
        let libraries = nccl.libraries(team.id == TeamId::WORLD);
        team.collectives.as_ref().is_some_and(|own| own.provider(&query, &libraries) == Provider::Nccl)
    }

    /// Enqueues a collective by NCCL. Operands and results in memory of the host are copied through
    /// device memory. In-place forms that NCCL does not support also use a copy in device memory.
    pub(super) fn by_nccl(&mut self, team: &TeamOf, op: &Collective) -> Result<Source, Error> {
        use CollectiveKind::{AllGather, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
        let (n, is_root) = (team.members.len(), team.me == op.root.index());
        let part = op.count * op.dtype.size_bytes();
        let sent = if matches!(op.kind, AllToAll | Scatter | ReduceScatter) { n * part } else { part };
        let received = if matches!(op.kind, AllGather | AllToAll | Gather) { n * part } else { part };
        let (has_send, has_recv) = match op.kind {
            Broadcast | Scatter => (is_root, true),
            Reduce | Gather => (true, is_root),
            _ => (true, true),
        };
        let mut call = Call { kind: op.kind, dtype: op.dtype, op: op.op, root: op.root, send: 0, recv: 0, count: op.count };
        if let Some(place) = op.send.filter(|_| has_send) {
            call.send = self.reading(place, sent)?;
            if matches!(place, Place::Private(_)) {
                call.send = self.copied(call.send, sent)?;
            }
        }
        // If NCCL writes the result to scratch memory: the address to which the result is then
        // copied.
        let (mut elsewhere, mut staged) = (None, None);
        if let Some(place) = op.recv.filter(|_| has_recv) {
            (call.recv, staged) = self.writing(place, received)?;
            // An in-place reduce-scatter of NCCL leaves the other parts of the buffer unspecified.
            let is_own_part = op.kind == ReduceScatter && call.recv == call.send + (team.me * part) as u64;
            if matches!(place, Place::Private(_)) || is_own_part {
                elsewhere = Some(call.recv);
                call.recv = self.scratch(received)?;
            } else if op.kind == AllToAll && call.send == call.recv {
                call.send = self.copied(call.send, sent)?;
            }
        }
        // SAFETY: the ranges have `sent` and `received` bytes. They stay allocated until the stream
        // has passed the call, or while the graph lives: they are recorded or held.
        let enqueued = unsafe { self.state.nccl.enqueue(self.stream, self.capturing, &call) };
        if let Err(error) = enqueued {
            return Err(self.state.nccl_refused(self.call, team, error));
        }
        if let Some(to) = elsewhere {
            self.copy(to, call.recv, received)?;
        }
        self.written(staged)?;
        Ok(Source::Nccl)
    }
}
