//! Pending collectives of a team in this process: at most one is allowed, because NVSHMEM has one
//! set of counters for each team.
//!
//! `meet` exchanges data with other PEs. Invariant: a collective begins after all earlier calls on
//! its team are complete; a collective that begins earlier, or on an internal stream of NVSHMEM
//! while one is pending, ends the process.

use core::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::Result;
use crate::enqueue::on_stream;
use crate::log::undefined;
use crate::meet::{Channel, Team, Turn};
use crate::world::World;
use crate::{call, driver, settings};

/// Counts the collectives of a team.
#[derive(Default)]
pub(crate) struct Flights {
    called: AtomicU64,
    done: AtomicU64,
}

/// A running collective; it ends when this is dropped.
pub(crate) struct Flight<'a> {
    pub(crate) turn: Turn<'a>,
    team: &'a Team,
    place: Option<u64>,
}

impl Flights {
    /// Counts a call and returns its position.
    pub(crate) fn call(&self) -> u64 {
        self.called.fetch_add(1, Ordering::AcqRel)
    }

    fn in_flight(&self) -> bool {
        self.done.load(Ordering::Acquire) != self.called.load(Ordering::Acquire)
    }
}

impl Team {
    /// Begins a collective. A collective of a graph has no position among the calls.
    pub(crate) fn begin(&self, function: &str, place: Option<u64>) -> Flight<'_> {
        if self.gone.load(Ordering::Acquire) {
            undefined(&format!("{function} reached its stream after team {} was destroyed", self.handle));
        }
        if place.is_some_and(|place| self.flights.done.load(Ordering::Acquire) != place) {
            undefined(&format!(
                "{function} began before the last collective of team {} was complete; nothing orders them",
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
        if self.flights.in_flight() || self.try_turn(Channel::Data).is_none() {
            undefined(&format!("{} was called while a collective of team {} was pending", call::function(), self.handle));
        }
    }

    /// Begins a collective for which the host waits.
    pub(crate) fn begin_on_host(&self) -> Flight<'_> {
        self.begin(call::function(), Some(self.flights.call()))
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.team.flights.done.store(place + 1, Ordering::Release);
        }
    }
}

/// Enqueues a collective.
pub(crate) fn in_order(
    team: Arc<Team>,
    stream: *mut c_void,
    work: impl Fn(&World, &Team, &mut Flight<'_>, &'static str) + Send + Sync + 'static,
) -> Result {
    if settings::get().noop {
        return Ok(());
    }
    let captured = driver::is_capturing(stream.addr())?;
    let place = (!captured).then(|| team.flights.call());
    let member = Arc::clone(&team);
    let enqueued = on_stream(stream, move |world, function| {
        let mut flight = member.begin(function, place);
        work(world, &member, &mut flight, function);
    });
    if enqueued.is_err() && place.is_some() {
        team.flights.called.fetch_sub(1, Ordering::AcqRel);
    }
    enqueued
}
