//! Tickets of enqueued operations. A caller waits for the outcome of an operation by its ticket.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use peerweave_core::backend::{Outcome, Pending};
use peerweave_core::{Error, TeamName};

use crate::backend::enqueue::Source;
use crate::backend::error::driver;
use crate::backend::resources::Recorded;
use crate::backend::state::{GRACE, State};

/// The ticket of an operation that was enqueued in a stream. Stores the outcome of the operation
/// once the outcome is known.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) state: Arc<State>,
    pub(super) call: &'static str,
    pub(super) team: TeamName,
    /// Whether the operation is a collective, a message, or a group of such operations. PEs record
    /// these operations, and compare the records to detect different calls.
    pub(super) is_compared: bool,
    pub(super) event: Recorded,
    pub(super) source: Source,
    pub(super) outcome: OnceLock<Result<Outcome, Error>>,
}

impl Ticket {
    /// Returns the outcome of the operation, which must be complete: the stream must have passed
    /// the event of the ticket.
    pub(super) fn resolve(&self) -> Result<Outcome, Error> {
        self.read().clone()
    }

    /// Like [`resolve`](Self::resolve), but returns a reference.
    pub(super) fn read(&self) -> &Result<Outcome, Error> {
        self.outcome.get_or_init(|| self.source.read(&self.state, self.call, self.team))
    }

    /// Returns whether the outcome is known. If the stream has passed the event of the ticket,
    /// first reads the outcome. Does not wait.
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

impl Pending for Ticket {
    fn is_complete(&self) -> bool {
        self.outcome.get().is_some() || !matches!(self.event.is_complete(), Ok(false))
    }

    fn wait(&self, within: Duration) -> Result<Outcome, Error> {
        if let Some(outcome) = self.outcome.get() {
            return outcome.clone();
        }
        let start = Instant::now();
        // Kernels end at the deadline of their waits, and report the missing signal or PE. This
        // wait lasts a little longer, so that it can return that report.
        let within = if within >= self.state.deadline { within.saturating_add(GRACE) } else { within };
        match self.state.wait_for(&self.event, within) {
            Ok(true) => {
                // A rank that exchanged data with this rank may have begun a different call than
                // this rank, so the calls are compared.
                if self.is_compared
                    && let Some(team) = self.state.teams.find(self.team.id)
                    && let Err(error) = self.state.compare(&team)
                {
                    self.outcome.get_or_init(|| Err(error));
                }
                self.resolve()
            }
            Ok(false) if self.source.waits_for_nccl(&self.state) && within >= self.state.deadline => {
                Err(self.state.nccl_is_late(self.call, self.team, start.elapsed()))
            }
            Ok(false) => Err(self.state.timed_out(self.call, self.team, start.elapsed())),
            Err(error) => self.outcome.get_or_init(|| Err(driver(self.call, error))).clone(),
        }
    }
}
