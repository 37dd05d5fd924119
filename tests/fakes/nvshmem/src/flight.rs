//! Collectives of a team that are in flight in this process: at most one may be, since NVSHMEM has
//! one set of counters for each team.
//!
//! Not in this module: meeting the others (`meet`). Invariant: a collective begins when every one
//! that was called before it on its team is done; who begins earlier, or on a stream of NVSHMEM's
//! own while one is in flight, ends the process.

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

/// A collective that runs, until it is dropped.
pub(crate) struct Flight<'a> {
    pub(crate) turn: Turn<'a>,
    team: &'a Team,
    place: Option<u64>,
}

impl Flights {
    /// Counts a call. Gives its place.
    pub(crate) fn call(&self) -> u64 {
        self.called.fetch_add(1, Ordering::AcqRel)
    }

    fn in_flight(&self) -> bool {
        self.done.load(Ordering::Acquire) != self.called.load(Ordering::Acquire)
    }
}

impl Team {
    /// Begins a collective. One of a graph has no place among those that were called.
    pub(crate) fn begin(&self, function: &str, place: Option<u64>) -> Flight<'_> {
        if self.gone.load(Ordering::Acquire) {
            undefined(&format!("{function} reached its stream after team {} was destroyed", self.handle));
        }
        if place.is_some_and(|place| self.flights.done.load(Ordering::Acquire) != place) {
            undefined(&format!(
                "{function} began before the last collective of team {} was done: they are in no order",
                self.handle
            ));
        }
        let Some(turn) = self.try_turn(Channel::Data) else {
            undefined(&format!("{function} began while another collective of team {} was in flight", self.handle));
        };
        Flight { turn, team: self, place }
    }

    /// Ends the process if a collective is in flight: the running call uses the team's counters on
    /// a stream of NVSHMEM's own.
    pub(crate) fn idle(&self) {
        if self.flights.in_flight() || self.try_turn(Channel::Data).is_none() {
            undefined(&format!("{} while a collective of team {} was in flight", call::function(), self.handle));
        }
    }

    /// Begins a collective that the host waits for.
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
