//! Tickets: enqueued operations and the ways to read their outcome.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use peerweave_core::backend::{Outcome, Pending, Until};
use peerweave_core::{Error, TeamName};
use peerweave_stream_kernels::{OUTCOME_BITS, OUTCOME_DONE, OUTCOME_NOT_YET};

use super::error::driver;
use super::event::Recorded;
use super::slots::Slot;
use super::state::{GRACE, State};

/// The location of the outcome of an operation.
#[derive(Debug)]
pub(super) enum Source {
    /// The operation is a copy. It has no stored outcome: it has succeeded when the stream has
    /// passed it.
    Copy,
    /// The operation is a call of NCCL. Only its communicator tells whether it failed.
    Nccl,
    /// The operation is a kernel without a result. Only the GPU's report tells whether it failed.
    Kernel,
    /// A function of the caller has combined elements; the first error of a panic.
    Function(Arc<OnceLock<Error>>),
    /// A copy has written the result to word 1 of the slot.
    Element(Slot),
    /// The slot contains whether the kernel succeeded.
    Done(Slot),
    /// The slot contains whether the last barrier of a collective succeeded. The GPU's report
    /// contains the failure of an earlier barrier.
    Collective(Slot),
    /// The slot contains whether the kernel succeeded, and its result in word 1.
    Word(Slot),
    /// A wait for this number of words has written the slot.
    Wait(Slot, Until, usize),
}

/// An operation in a stream.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) state: Arc<State>,
    pub(super) call: &'static str,
    pub(super) team: TeamName,
    /// Whether the operation is a collective call, which all ranks of a team make.
    pub(super) is_collective: bool,
    pub(super) event: Recorded,
    pub(super) source: Source,
    pub(super) outcome: OnceLock<Result<Outcome, Error>>,
}

impl Ticket {
    /// The outcome of an operation whose event the stream has passed.
    pub(super) fn resolve(&self) -> Result<Outcome, Error> {
        self.read().clone()
    }

    /// Like [`resolve`](Self::resolve), but returns a reference.
    pub(super) fn read(&self) -> &Result<Outcome, Error> {
        self.outcome.get_or_init(|| self.source.read(&self.state, self.call, self.team))
    }

    /// Reads the outcome if it is available now. Returns whether the outcome is known.
    pub(super) fn poll(&self) -> bool {
        if self.outcome.get().is_some() {
            return true;
        }
        match self.event.is_complete() {
            Ok(false) => false,
            Ok(true) => {
                let _ = self.read();
                true
            }
            Err(error) => {
                self.outcome.get_or_init(|| Err(driver(self.call, error)));
                true
            }
        }
    }
}

impl Source {
    /// Reads the outcome of an operation that has ended.
    pub(super) fn read(&self, state: &State, call: &'static str, team: TeamName) -> Result<Outcome, Error> {
        let slot = match self {
            Self::Copy => return Ok(Outcome::Done),
            Self::Nccl if state.nccl.has_failed() || state.has_failed() => {
                return Err(state.nccl_failure(call, team, state.deadline));
            }
            Self::Nccl => return Ok(Outcome::Done),
            Self::Kernel if state.has_failed() => return Err(state.kernel_failure(call, team)),
            Self::Kernel => return Ok(Outcome::Done),
            Self::Function(_) if state.has_failed() => return Err(state.kernel_failure(call, team)),
            Self::Function(panicked) => return panicked.get().map_or(Ok(Outcome::Done), |error| Err(error.clone())),
            Self::Element(slot) => return Ok(Outcome::Word(slot.get(1))),
            Self::Collective(_) if state.has_failed() => return Err(state.kernel_failure(call, team)),
            Self::Collective(slot) | Self::Done(slot) | Self::Word(slot) | Self::Wait(slot, ..) => slot,
        };
        match (slot.get(0), self) {
            (OUTCOME_NOT_YET, _) => Ok(Outcome::NotYet),
            (OUTCOME_DONE, Self::Word(slot) | Self::Wait(slot, Until::All, _)) => Ok(Outcome::Word(slot.get(1))),
            (OUTCOME_DONE, Self::Wait(slot, Until::Any, _)) => {
                Ok(Outcome::Indices(slot.get(1).checked_sub(1).map(|index| index as usize).into_iter().collect()))
            }
            (OUTCOME_DONE, Self::Wait(slot, Until::Some, count)) => {
                let is_set = |index: &usize| slot.get(OUTCOME_BITS + index / 64) >> (index % 64) & 1 != 0;
                Ok(Outcome::Indices((0..*count).filter(is_set).collect()))
            }
            (OUTCOME_DONE, _) => Ok(Outcome::Done),
            _ => Err(state.kernel_failure(call, team)),
        }
    }
}

impl Pending for Ticket {
    fn is_complete(&self) -> bool {
        self.outcome.get().is_some() || !matches!(self.event.is_complete(), Ok(false))
    }

    fn wait(&self, within: Duration) -> Result<Outcome, Error> {
        if let Some(outcome) = self.outcome.get() {
            return outcome.clone();
        }
        let start = Instant::now();
        // Kernels end by themselves at the deadline of their waits, and report which signal or PE
        // was missing.
        let within = if within >= self.state.deadline { within.saturating_add(GRACE) } else { within };
        match self.state.wait_for(&self.event, within) {
            Ok(true) => {
                // Ranks that exchanged data with this rank have begun a call, which may be a
                // different call.
                if self.is_collective
                    && let Some(team) = self.state.teams.find(self.team.id)
                    && let Err(error) = self.state.compare(&team)
                {
                    self.outcome.get_or_init(|| Err(error));
                }
                self.resolve()
            }
            Ok(false) if matches!(self.source, Source::Nccl) && within >= self.state.deadline => {
                Err(self.state.nccl_is_late(self.call, self.team, start.elapsed()))
            }
            Ok(false) => Err(self.state.timed_out(self.call, self.team, start.elapsed())),
            Err(error) => self.outcome.get_or_init(|| Err(driver(self.call, error))).clone(),
        }
    }
}
