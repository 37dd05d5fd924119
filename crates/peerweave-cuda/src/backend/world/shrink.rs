//! Creates a new backend for the surviving PEs after a failure, on the same GPUs.
//!
//! The PEs agree on the survivors through words in host memory that all PEs map (`teams/calls.rs`).
//! So the agreement needs no server and is possible whichever PE has died. Then the surviving PEs
//! join a new rendezvous, and set up their GPUs as at the start of a job. A final agreement ensures
//! that either all surviving members have the new job, or none of them has it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_bootstrap::Server;
use peerweave_bootstrap::survivors::{Decision, Disagreement, SurvivorWords, Survivors, Ticket};
use peerweave_core::backend::Shrunk;
use peerweave_core::{Error, PeerCause, Timeout};
use peerweave_driver::deadline_after;
use peerweave_types::Pe;

use super::Cuda;
use crate::backend::error::{cause, of_set_up, unsupported};
use crate::backend::lock::lock;
use crate::error::CudaError;
use crate::gpu::{Gpu, GpuOptions};

const CALL: &str = "shrink";

/// Minimum time limit for the set-up of the GPUs after the PEs have agreed on the survivors. The
/// set-up takes time, because each PE loads its kernels again.
const SET_UP: Duration = Duration::from_secs(10);

/// Maximum time for which this PE waits to learn that a member has ended, after the set-up of the
/// new job has failed.
const NOTICE: Duration = Duration::from_secs(1);

impl Cuda {
    /// Creates a backend for the PEs that have not died and have not left. All these PEs must call
    /// this function.
    pub(super) fn shrink_to_survivors(&self) -> Result<Shrunk, Error> {
        let state = &*self.state;
        let options = state.gpu(CALL)?.0.options.clone();
        let alone = SurvivorWords::default();
        if state.calls.is_none() && state.job.n_pes > 1 {
            return Err(unsupported(
                CALL,
                "the survivors need host memory that all PEs share; jobs on several machines or on NVSHMEM's heap have no such memory",
            ));
        }
        let words = |pe: usize| state.calls.as_ref().map_or(&alone, |calls| calls.survivors(pe));
        let has_ended = |pe: usize| self.end_of(pe).is_some();
        let survivors = Survivors::new(state.job.my_pe, state.job.n_pes, &words, &has_ended);
        let (started, until) = (Instant::now(), deadline_after(state.deadline));
        self.end_operations();
        loop {
            let mut server = None;
            let lead = |_: u64, members: &[Pe]| {
                let (ticket, started) = Ticket::prepare(members.len() as u32).map_err(|error| Error::setup(CALL, error))?;
                server = started;
                Ok(ticket)
            };
            let decision = survivors.agree(until, || Ok(()), lead).map_err(|error| self.disagreed(started, error))?;
            let limit = until.max(deadline_after(SET_UP.min(state.deadline)));
            let made = survivors.beating(|| {
                let made = self.set_up(&survivors, &decision, server, &options, limit)?;
                let committed = survivors.commit(&decision, limit);
                committed.map(|()| made).map_err(|error| match error {
                    Disagreement::Failed(never) => match never {},
                    Disagreement::Late { waited, missing } => self.disagreed(started, Disagreement::Late { waited, missing }),
                    Disagreement::Left(pe) => self.disagreed(started, Disagreement::Left(pe)),
                })
            });
            let error = match made {
                Ok(made) => {
                    // The process keeps the connection to the rendezvous of its launcher's job.
                    let launcher = lock(&state.launcher).take().or_else(|| lock(&state.rendezvous).take());
                    *lock(&made.state.launcher) = launcher;
                    return Ok(Shrunk { backend: made, former: decision.members });
                }
                Err(error) => error,
            };
            let broken = is_broken_soon(&survivors, &decision);
            let error = self.root_cause_of(&survivors, &decision, started, error);
            survivors.withdraw(&decision, error.blamed().first().copied());
            if !broken || Instant::now() >= until {
                return Err(error);
            }
            tracing::debug!(%error, "a member was lost while the new job was set up: trying again");
        }
    }

    /// Returns the reason why a PE no longer takes part in the job. Returns `None` if the PE may
    /// still take part.
    fn end_of(&self, pe: usize) -> Option<PeerCause> {
        let rendezvous = lock(&self.state.rendezvous).clone();
        let losses = rendezvous.map_or_else(Vec::new, |rendezvous| rendezvous.losses());
        let lost = losses.iter().find(|(lost, _)| lost.index() == pe).map(|(_, loss)| cause(loss));
        let watched = self.state.processes.as_ref().is_some_and(|processes| processes.has_ended(pe));
        lost.or_else(|| watched.then_some(PeerCause::Died))
    }

    /// Ends the operations of this PE in the old world: aborts kernels that wait for other PEs, and
    /// makes later operations fail.
    fn end_operations(&self) {
        let state = &*self.state;
        let me = state.me();
        let gone = (0..state.job.n_pes).filter(|pe| *pe != me).find_map(|pe| Some((pe, self.end_of(pe)?)));
        let (pe, cause) = gone.unwrap_or((me, PeerCause::Shrinks));
        state.record(Error::Peer { call: CALL, team: state.world(), pe: Pe::new(pe as u32), cause });
        if let Ok(gpu) = state.gpu(CALL) {
            gpu.0.report.abort();
        }
        if let Err(error) = state.nccl.end(true, state.deadline) {
            tracing::debug!(%error, "NCCL ended with an error");
        }
        // Work that still runs at the deadline keeps its memory, which stays mapped.
        if let Err(error) = self.drain(CALL) {
            tracing::warn!(%error, "operations of the old world are still running; their memory stays allocated");
        }
    }

    /// Sets up the GPU of this PE in the new job. All members of the new job must call this
    /// function.
    fn set_up(
        &self,
        survivors: &Survivors<'_>,
        decision: &Decision,
        server: Option<Server>,
        options: &GpuOptions,
        until: Instant,
    ) -> Result<Arc<Self>, Error> {
        let setup = |error: CudaError| of_set_up(CALL, decision.members.len(), error);
        let rendezvous = survivors.join(decision, server, until, options.deadline).map_err(|error| setup(error.into()))?;
        let gpu = Gpu::new(&Arc::new(rendezvous), &self.state.context, options.clone()).map_err(setup)?;
        Self::with(gpu, &self.options)
    }

    /// Converts an error that occurred during the set-up of the new job. The result names PEs by
    /// their numbers in the old job. If other PEs caused the error, the result is an
    /// [`Error::Timeout`] that names these PEs.
    fn root_cause_of(&self, survivors: &Survivors<'_>, decision: &Decision, started: Instant, error: Error) -> Error {
        let team = self.state.world();
        let error = error.renumbered(CALL, team, |pes| decision.old_pes(pes));
        let is_lost = matches!(error, Error::Peer { .. });
        let causes = survivors.causes(decision, error.blamed().first().copied(), is_lost, NOTICE);
        if causes.is_empty() { error } else { Timeout::new(CALL, team, started.elapsed(), causes).into() }
    }

    fn disagreed(&self, started: Instant, error: Disagreement<Error>) -> Error {
        let team = self.state.world();
        match error {
            Disagreement::Late { missing, .. } => Timeout::new(CALL, team, started.elapsed(), missing).into(),
            Disagreement::Left(pe) => Error::Peer { call: CALL, team, pe, cause: PeerCause::Left },
            Disagreement::Failed(error) => error,
        }
    }
}

/// Returns whether a member of the new job has ended or given up. Waits for up to [`NOTICE`],
/// because this PE may see the failure of the set-up before it learns that a member has ended.
fn is_broken_soon(survivors: &Survivors<'_>, decision: &Decision) -> bool {
    let until = Instant::now() + NOTICE;
    loop {
        if survivors.is_broken(decision) {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
