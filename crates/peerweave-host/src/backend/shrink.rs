//! Creates the host backend of a new job, whose members are the PEs that survive a failure.
//!
//! The memory of the old job stays mapped after PEs have died. So the survivors agree on the
//! members of the new job through words in this memory (`peerweave_bootstrap::survivors`). If PEs
//! are processes, the first member then runs the rendezvous server of the new job. The members join
//! the new job as at the start of any job. If PEs are threads, the first member allocates the new
//! memory, and all members get it from [`NextMemory`].
//!
//! A member may die after the agreement. Then joining fails on all members, and the members agree
//! again without the dead member. The last step of joining is one exchange in the new memory. A
//! member completes the exchange if all other members have published their data. So either all
//! members that continue have the new job, or no member has the new job.

use super::Host;
use super::join::{announce, deadline_after, layout, meeting_failed};
use crate::memory::segment::Mapping;
use crate::sync::abort::JobAbort;
use peerweave_bootstrap::Server;
use peerweave_bootstrap::survivors::{Decision, Disagreement, Survivors, Ticket};
use peerweave_core::backend::Shrunk;
use peerweave_core::{Error, PeerCause, Timeout};
use peerweave_types::Pe;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const CALL: &str = "shrink";

/// Minimum time limit for setting up the new job after the PEs have agreed. Without this minimum,
/// no time would be left if the PEs agree just before the deadline of this PE.
const SET_UP: Duration = Duration::from_secs(2);

/// Time limit for finding the cause after the setup of the new job has failed. During this time,
/// this PE waits until a PE that may be the cause has died or has withdrawn from the new job.
const NOTICE: Duration = Duration::from_secs(1);

/// The memory of new jobs, if PEs are threads. The PEs agree on a new job in one or more attempts.
/// The key is the number of the successful attempt.
#[derive(Debug, Default)]
pub(super) struct NextMemory(Mutex<HashMap<u64, Prepared>>);

#[derive(Debug)]
struct Prepared {
    mapping: Arc<Mapping>,
    next: Arc<NextMemory>,
    /// Number of PEs of the new job that have not yet called [`NextMemory::take`]. The last call
    /// removes this value.
    untaken: usize,
}

impl NextMemory {
    fn prepare(&self, attempt: u64, mapping: Mapping) {
        let untaken = mapping.segments().layout().n_pes;
        let prepared = Prepared { mapping: Arc::new(mapping), next: Arc::default(), untaken };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(attempt, prepared);
    }

    fn take(&self, attempt: u64) -> (Arc<Mapping>, Arc<Self>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let prepared = all.get_mut(&attempt).expect("the leader prepares the memory before it publishes its decision");
        let taken = (prepared.mapping.clone(), prepared.next.clone());
        prepared.untaken -= 1;
        if prepared.untaken == 0 {
            all.remove(&attempt);
        }
        taken
    }
}

impl Host {
    /// Creates the backend of this PE in a new job. The members of the new job are the PEs that
    /// have neither died nor left. Collective over these PEs.
    pub(super) fn shrink_to_survivors(&self) -> Result<Shrunk, Error> {
        let peers = &self.shared.peers;
        peers.check_abort()?;
        self.end_operations();
        let (started, until) = (Instant::now(), deadline_after(peers.deadline));
        let words = |pe: usize| peers.segments.survivors(pe);
        let has_ended = |pe: usize| peers.liveness.gone(pe).is_some();
        let survivors = Survivors::new(Pe::new(peers.me as u32), peers.n_pes(), &words, &has_ended);
        loop {
            let mut server = None;
            let lead = |attempt: u64, members: &[Pe]| self.prepare(attempt, members.len(), &mut server);
            let decision =
                survivors.agree(until, || peers.check_abort(), lead).map_err(|error| self.disagreed(started, error))?;
            let limit = until.max(Instant::now() + SET_UP.min(peers.deadline));
            match survivors.beating(|| self.set_up(&survivors, &decision, server, limit)) {
                Ok(backend) => {
                    survivors.complete(&decision);
                    return Ok(Shrunk { backend: Arc::new(backend), former: decision.members });
                }
                Err(error) => {
                    let again = matches!(error, Error::Peer { .. }) || survivors.is_broken(&decision);
                    let error = self.root_cause_of(&survivors, &decision, started, error);
                    survivors.withdraw(&decision, error.blamed().first().copied());
                    if !again || Instant::now() >= until {
                        return Err(error);
                    }
                    tracing::debug!(%error, "a PE was lost during the setup of the shrunk job; the remaining PEs choose the members again");
                }
            }
        }
    }

    /// Makes all teams fail on this PE, so that no other PE waits for this PE. The error names a PE
    /// that has died or left; if there is none, it states that this PE shrinks the job.
    fn end_operations(&self) {
        let peers = &self.shared.peers;
        let mut gone: Vec<(usize, PeerCause)> =
            (0..peers.n_pes()).filter(|&pe| pe != peers.me).filter_map(|pe| Some((pe, peers.liveness.gone(pe)?))).collect();
        // A PE that died takes precedence as the cause over a PE that left.
        gone.sort_by_key(|(_, cause)| *cause != PeerCause::Died);
        let team = self.shared.teams.world().name();
        let error = match gone.into_iter().next() {
            Some((pe, cause)) => peers.peer_error(CALL, team, pe, cause, 0),
            None => Error::Peer { call: CALL, team, pe: Pe::new(peers.me as u32), cause: PeerCause::Shrinks },
        };
        self.shared.teams.fail(peers, &error);
    }

    /// Prepares a new job of `n_pes` PEs. Only the first PE of the new job calls this function. If
    /// PEs are processes, starts the rendezvous server. If PEs are threads, allocates the memory.
    fn prepare(&self, attempt: u64, n_pes: usize, server: &mut Option<Server>) -> Result<Ticket, Error> {
        if let Some(next) = &self.next {
            let mapping = Mapping::own(layout(n_pes, &self.options)?).map_err(|error| Error::system(CALL, error))?;
            (0..n_pes).for_each(|pe| announce(&mapping, pe));
            next.prepare(attempt, mapping);
            return Ok(Ticket::NONE);
        }
        let (ticket, started) = Ticket::prepare(n_pes as u32).map_err(|error| Error::setup(CALL, error))?;
        *server = started;
        Ok(ticket)
    }

    /// Creates the backend of this PE in the new job. Collective over the members of the new job.
    fn set_up(
        &self,
        survivors: &Survivors<'_>,
        decision: &Decision,
        server: Option<Server>,
        until: Instant,
    ) -> Result<Self, Error> {
        let n_pes = decision.members.len();
        if let (Some(next), JobAbort::OfThreads(word)) = (&self.next, &self.shared.peers.job_abort) {
            let (mapping, next) = next.take(decision.attempt());
            let me = decision.new_pe(survivors.me()).map_or(0, |pe| pe.index());
            return Self::of_thread(me, mapping, &self.options, (word.clone(), next), until);
        }
        let made = if n_pes == 1 {
            Self::single(CALL, &self.options, until)?
        } else {
            let layout = layout(n_pes, &self.options)?;
            let rendezvous = survivors.join(decision, server, until, self.options.deadline);
            let rendezvous = rendezvous.map_err(|error| meeting_failed(CALL, n_pes, error))?;
            Self::meet(CALL, Arc::new(rendezvous), layout, &self.options, until)?
        };
        // The process keeps its membership in the job of the launcher.
        let take = |rendezvous: &Mutex<Option<_>>| rendezvous.lock().unwrap_or_else(PoisonError::into_inner).take();
        let launcher = take(&self.shared.launcher).or_else(|| take(&self.shared.rendezvous));
        *made.shared.launcher.lock().unwrap_or_else(PoisonError::into_inner) = launcher;
        Ok(made)
    }

    /// Converts an error that occurred in the new job. The result names the PEs that caused the
    /// error, by their PE numbers in the old job.
    fn root_cause_of(&self, survivors: &Survivors<'_>, decision: &Decision, started: Instant, error: Error) -> Error {
        let team = self.shared.teams.world().name();
        let error = error.renumbered(CALL, team, |pes| decision.old_pes(pes));
        let is_lost = matches!(error, Error::Peer { .. });
        let causes = survivors.causes(decision, error.blamed().first().copied(), is_lost, NOTICE);
        if causes.is_empty() { error } else { Timeout::new(CALL, team, started.elapsed(), causes).into() }
    }

    fn disagreed(&self, started: Instant, error: Disagreement<Error>) -> Error {
        let team = self.shared.teams.world().name();
        match error {
            Disagreement::Late { missing, .. } => Timeout::new(CALL, team, started.elapsed(), missing).into(),
            Disagreement::Left(pe) => Error::Peer { call: CALL, team, pe, cause: PeerCause::Left },
            Disagreement::Failed(error) => error,
        }
    }
}
