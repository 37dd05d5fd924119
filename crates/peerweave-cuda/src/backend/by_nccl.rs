//! Collectives that NCCL carries out, where the route table says so.

use std::time::Duration;

use peerweave_core::backend::{Collective, CollectiveKind, Place, TeamId};
use peerweave_core::{Error, PeerCause, TeamName, Timeout};
use peerweave_nccl::NcclError;
use peerweave_types::Pe;

use super::enqueue::Enqueue;
use super::error::{cause, portable};
use super::state::State;
use super::teams::TeamOf;
use super::ticket::Source;
use crate::error::CudaError;
use crate::nccl::Call;
use crate::route::{Provider, Query};

impl Enqueue<'_> {
    /// Returns whether NCCL carries out a call of a team. All ranks get the same answer.
    pub(super) fn is_by_nccl(&self, team: &TeamOf, op: &Collective) -> bool {
        let nccl = &self.state.nccl;
        if !nccl.is_ready() || op.special.is_some() || op.counts.is_some() {
            return false;
        }
        let query = Query::new(op.kind, op.dtype, op.count as u64).reduction(op.op);
        let libraries = nccl.libraries(team.id == TeamId::WORLD);
        team.collectives.as_ref().is_some_and(|own| own.provider(&query, &libraries) == Provider::Nccl)
    }

    /// Enqueues a call of NCCL. Memory of the host, and operands that NCCL does not take in place,
    /// pass through memory of the device.
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
        // Where the result belongs, if NCCL writes it elsewhere.
        let (mut elsewhere, mut staged) = (None, None);
        if let Some(place) = op.recv.filter(|_| has_recv) {
            (call.recv, staged) = self.writing(place, received)?;
            // In place NCCL leaves the other parts of a reduce-scatter unspecified.
            let is_own_part = op.kind == ReduceScatter && call.recv == call.send + (team.me * part) as u64;
            if matches!(place, Place::Private(_)) || is_own_part {
                elsewhere = Some(call.recv);
                call.recv = self.scratch(received)?;
            } else if op.kind == AllToAll && call.send == call.recv {
                call.send = self.copied(call.send, sent)?;
            }
        }
        // SAFETY: the ranges have so many bytes, and stay allocated until the stream has passed the
        // call, or while the graph lives: they are noted or held.
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

    /// Copies memory to memory of the device that the operation holds.
    fn copied(&mut self, from: u64, bytes: usize) -> Result<u64, Error> {
        let copy = self.scratch(bytes)?;
        self.copy(copy, from, bytes)?;
        Ok(copy)
    }
}

impl State {
    /// Returns the error of a call that NCCL did not enqueue on this PE, and fails the teams of
    /// this PE: other ranks may wait for the call.
    fn nccl_refused(&self, call: &'static str, team: &TeamOf, error: NcclError) -> Error {
        self.nccl.abort();
        let name = team.name();
        let error = match error {
            NcclError::PeerLost(lost) if !lost.ranks.is_empty() => {
                let pe = Pe::new(lost.ranks[0].get());
                let known = self.loss_of(call, pe);
                Error::Peer { call, team: name, pe, cause: known.unwrap_or(PeerCause::Died) }
            }
            NcclError::Timeout(timeout) => {
                let missing = timeout.missing.iter().map(|rank| Pe::new(rank.get())).collect();
                Error::Timeout(Box::new(Timeout { call, team: name, waited: timeout.waited, missing, running: None }))
            }
            NcclError::Bootstrap { source, .. } => portable(call, name, CudaError::Bootstrap((*source).clone())),
            NcclError::Dead { .. } => return self.nccl_failure(call, name, self.deadline),
            error => Error::system(call, error),
        };
        self.record(error)
    }

    /// Returns the cause of the loss of a PE, if the rendezvous knows it.
    fn loss_of(&self, call: &'static str, pe: Pe) -> Option<PeerCause> {
        let losses = self.gpu(call).ok()?.rendezvous().losses();
        losses.iter().find(|(lost, _)| *lost == pe).map(|(_, loss)| cause(loss))
    }

    /// Returns the reason why work of NCCL failed or was aborted: a lost PE, ranks that made other
    /// calls, or ranks that have not made the call.
    pub(super) fn nccl_failure(&self, call: &'static str, team: TeamName, waited: Duration) -> Error {
        if let Some(because) = self.failure() {
            return because;
        }
        let lost = self.gpu(call).ok().and_then(|gpu| gpu.0.lost());
        if let Some((pe, loss)) = lost {
            return self.record(Error::Peer { call, team, pe, cause: cause(&loss) });
        }
        if let Err(error) = self.compare_all() {
            return error;
        }
        let of = self.teams.find(team.id);
        let missing = of.zip(self.calls.as_ref()).map_or_else(Vec::new, |(team, calls)| calls.behind(&team));
        self.record(Error::Timeout(Box::new(Timeout { call, team, waited, missing, running: None })))
    }

    /// Ends the work of NCCL that a wait of `waited` has not seen end, and returns the reason.
    pub(super) fn nccl_is_late(&self, call: &'static str, team: TeamName, waited: Duration) -> Error {
        // The ranks that have not arrived are known before the work ends.
        let error = self.nccl_failure(call, team, waited);
        self.nccl.abort();
        error
    }
}
