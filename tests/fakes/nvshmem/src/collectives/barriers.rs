//! Fence, quiet, flush, sync and barrier, from the host and on streams.
//!
//! Collectives over data are in `collective`. Invariant: a PE completes its pending transfers
//! before it arrives at a barrier.

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use peerweave_fake_common::driver;

use super::begin::{self, team_of};
use crate::abi::Result;
use crate::call::{self, exports};
use crate::job::{World, counters, live, on_stream};
use crate::peers::{Flight, Team, record_of};

fn arrive(world: &World, team: &Team, flight: &mut Flight<'_>, function: &'static str, quiet: bool) {
    // Ends the process if the job has ended, as every other operation does.
    world.memory().local(function, "nothing", 0, 0);
    if quiet {
        world.quiet();
    }
    flight.turn.meet(record_of(function, &[team.index as u64], &[]));
}

fn counted(handle: c_int) -> Result<(Arc<World>, Arc<Team>)> {
    let found = team_of(handle)?;
    counters::COLLECTIVES.fetch_add(1, Ordering::Relaxed);
    Ok(found)
}

fn on_host(handle: c_int, quiet: bool) -> Result {
    let (world, team) = counted(handle)?;
    call::take_effect().suffer();
    if quiet {
        world.quiesce(false);
        world.quiet_of_host();
    }
    arrive(&world, &team, &mut team.begin_on_host(), call::function(), quiet);
    Ok(())
}

fn in_order(handle: c_int, quiet: bool, stream: *mut c_void) -> Result {
    let (world, team) = counted(handle)?;
    if quiet {
        world.quiesce(driver::is_capturing(stream.addr())?);
    }
    begin::in_order(team, stream, move |world, team, flight, function| arrive(world, team, flight, function, quiet))
}

fn quiet() {
    call::take_effect().suffer();
    let world = live();
    world.quiesce(false);
    world.quiet_of_host();
}

fn quiet_in_order(stream: *mut c_void) {
    live().quiesce(call::or_abort(driver::is_capturing(stream.addr()).map_err(Into::into)));
    call::or_abort(on_stream(stream, |world, function| {
        world.memory().local(function, "nothing", 0, 0);
        world.quiet();
    }));
}

const WORLD: c_int = 0;

exports! {
    fn nvshmem_barrier(team: c_int) -> c_int {
        call::code(|| on_host(team, true))
    }

    fn nvshmem_barrier_all() {
        call::or_abort(on_host(WORLD, true));
    }

    fn nvshmem_team_sync(team: c_int) -> c_int {
        call::code(|| on_host(team, false))
    }

    fn nvshmem_sync_all() {
        call::or_abort(on_host(WORLD, false));
    }

    fn nvshmemx_barrier_on_stream(team: c_int, stream: *mut c_void) -> c_int {
        call::code(|| in_order(team, true, stream))
    }

    fn nvshmemx_barrier_all_on_stream(stream: *mut c_void) {
        call::or_abort(in_order(WORLD, true, stream));
    }

    fn nvshmemx_team_sync_on_stream(team: c_int, stream: *mut c_void) -> c_int {
        call::code(|| in_order(team, false, stream))
    }

    fn nvshmemx_sync_all_on_stream(stream: *mut c_void) {
        call::or_abort(in_order(WORLD, false, stream));
    }

    fn nvshmem_fence() {
        quiet();
    }

    fn nvshmem_quiet() {
        quiet();
    }

    fn nvshmemx_flush() {
        quiet();
    }

    fn nvshmemx_quiet_on_stream(stream: *mut c_void) {
        quiet_in_order(stream);
    }

    fn nvshmemx_flush_on_stream(stream: *mut c_void) {
        quiet_in_order(stream);
    }
}
