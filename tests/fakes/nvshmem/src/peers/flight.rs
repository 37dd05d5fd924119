//! Running collectives of a team in this process. At most one is allowed at a time, because NVSHMEM
//! has one set of counters for each team.
//!
//! Module `exchange` exchanges data with other PEs. Invariant: a collective begins after all
//! earlier collectives of its team are complete. The process ends if a collective begins earlier,
//! or if a call uses the team's counters while a collective is pending.

use std::sync::atomic::Ordering;

use super::exchange::{Channel, Turn};
use super::team::Team;
use crate::call::{self, undefined};

/// A running collective. Dropping the `Flight` ends the collective.
pub(crate) struct Flight<'a> {
    pub(crate) turn: Turn<'a>,
    team: &'a Team,
    place: Option<u64>,
}

impl Team {
    /// Begins a collective. `place` is `None` for a collective of a graph, which has no position
    /// among the calls.
    pub(crate) fn begin(&self, function: &str, place: Option<u64>) -> Flight<'_> {
        if self.gone.load(Ordering::Acquire) {
            undefined(&format!("{function} reached its stream after team {} was destroyed", self.handle));
        }
        if place.is_some_and(|place| self.flights.done() != place) {
            undefined(&format!(
                "{function} began before the last collective of team {} was complete; no stream or event orders the two collectives",
                self.handle
            ));
        }
        let Some(turn) = self.try_turn(Channel::Data) else {
            undefined(&format!("{function} began while another collective of team {} was pending", self.handle));
        };
        Flight { turn, team: self, place }
    }

    /// Ends the process if a collective is pending, because the running call uses the team's
    /// counters on an internal stream of NVSHMEM.
    pub(crate) fn idle(&self) {
        if self.flights.is_pending() || self.try_turn(Channel::Data).is_none() {
            undefined(&format!("{} was called while a collective of team {} was pending", call::function(), self.handle));
        }
    }

    /// Begins a setup call, which uses the team's counters too.
    pub(crate) fn begin_setup(&self) -> Turn<'_> {
        self.idle();
        self.turn(Channel::Setup)
    }

    /// Begins a collective for which the host waits.
    pub(crate) fn begin_on_host(&self) -> Flight<'_> {
        self.begin(call::function(), Some(self.flights.call()))
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.team.flights.complete(place);
        }
    }
}
