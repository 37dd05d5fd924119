//! Converts failures of NCCL to errors with the reason of the failure.

use std::time::Duration;

use peerweave_core::{Error, PeerCause, TeamName, Timeout};
use peerweave_nccl::NcclError;
use peerweave_types::Pe;

use super::State;
use crate::backend::error::{cause, of_loss, portable};
use crate::backend::teams::TeamOf;
use crate::error::CudaError;

impl State {
    /// Handles a call that NCCL did not enqueue: aborts NCCL and poisons the teams of this PE,
    /// because other ranks may wait for the call. Returns the error of the call.
    pub(crate) fn nccl_refused(&self, call: &'static str, team: &TeamOf, error: NcclError) -> Error {
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
                Error::from(Timeout::new(call, name, timeout.waited, missing))
            }
            NcclError::Bootstrap { source, .. } => portable(call, name, CudaError::Bootstrap((*source).clone())),
            NcclError::Dead { .. } => return self.nccl_failure(call, name, self.deadline),
            error => Error::system(call, error),
        };
        self.record(error)
    }

    /// Returns the cause of the loss of a PE. Returns `None` if the rendezvous reports no loss of
    /// that PE.
    fn loss_of(&self, call: &'static str, pe: Pe) -> Option<PeerCause> {
        let losses = self.gpu(call).ok()?.rendezvous().losses();
        losses.iter().find(|(lost, _)| *lost == pe).map(|(_, loss)| cause(loss))
    }

    /// Returns the error with the reason why work of NCCL failed or was aborted: a lost PE, ranks
    /// that made different calls, or ranks that have not made the call. Records the error.
    pub(crate) fn nccl_failure(&self, call: &'static str, team: TeamName, waited: Duration) -> Error {
        if let Some(because) = self.failure() {
            return because;
        }
        let lost = self.gpu(call).ok().and_then(|gpu| gpu.0.lost());
        if let Some((pe, loss)) = lost {
            return self.record(of_loss(call, team, pe, &loss));
        }
        if let Err(error) = self.compare_all() {
            return error;
        }
        let of = self.teams.find(team.id);
        let missing = of.zip(self.calls.as_ref()).map_or_else(Vec::new, |(team, calls)| calls.behind(&team));
        self.record(Timeout::new(call, team, waited, missing).into())
    }

    /// Aborts NCCL's work, which has not ended although the caller has waited for the time
    /// `waited`. Returns the error of the call, which contains the reason why the work is late.
    pub(crate) fn nccl_is_late(&self, call: &'static str, team: TeamName, waited: Duration) -> Error {
        // The missing ranks must be determined before the abort ends the work.
        let error = self.nccl_failure(call, team, waited);
        self.nccl.abort();
        error
    }
}
