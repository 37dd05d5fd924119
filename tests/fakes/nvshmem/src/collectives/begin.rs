//! Begins collectives: finds the team of a collective, and enqueues the collective on a stream.
//!
//! Invariant: a collective that could not be enqueued does not count as a call.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use peerweave_fake_common::driver;

use crate::abi::{Result, invalid};
use crate::job::{World, live, on_stream};
use crate::peers::{Flight, Team};
use crate::settings;

/// Returns the job, and the team with this handle.
pub(super) fn team_of(handle: c_int) -> Result<(Arc<World>, Arc<Team>)> {
    let world = live();
    if handle < 0 {
        return invalid(format!("{handle} is not the handle of a team"));
    }
    let team = world.teams.of(handle);
    Ok((world, team))
}

/// Enqueues a collective of a team on a stream.
pub(super) fn in_order(
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
        team.flights.take_back();
    }
    enqueued
}
