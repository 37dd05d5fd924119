//! Runs a launch when its stream reaches it: the ranks synchronize, exchange data and compute.
//!
//! Module `launch` enqueues launches. Modules `collective` and `one_sided` run operations.
//!
//! Invariant: a communicator's launches run one after another in the order in which they were
//! enqueued, on any streams, as in NCCL.

use core::ffi::c_void;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::collective::run_collective;
use super::one_sided;
use super::stop::{Step, Stopped, mismatch, stay};
use super::work::{Effect, Item, Work};
use crate::abi::{read, write};
use crate::comm::Comm;
use crate::messages::{Bytes, Channel, mailbox, wire};
use crate::report::undefined;

/// The work that one call enqueues on a stream: a communicator's part of a group.
pub(super) struct Launch {
    pub(super) comm: &'static Comm,
    pub(super) items: Vec<Item>,
    /// Position in the order of launches; `None` in a graph, which runs at each graph launch.
    pub(super) turn: Option<u64>,
}

/// Runs a launch once and frees it.
pub(super) extern "C" fn run_once(data: *mut c_void) {
    // SAFETY: the launch was boxed for this call alone.
    let launch = unsafe { Box::from_raw(data.cast::<Launch>()) };
    run(&launch);
}

/// Runs a launch that a graph holds.
pub(super) extern "C" fn run_again(data: *mut c_void) {
    // SAFETY: the graph keeps the launch until it is destroyed.
    let launch = unsafe { &*data.cast::<Launch>() };
    if launch.comm.is_released() {
        undefined("use of a destroyed communicator by a captured graph");
    }
    if launch.comm.state().suspended {
        undefined("a captured graph uses memory of a suspended communicator");
    }
    run(launch);
}

/// Frees a launch that a graph held.
pub(super) extern "C" fn forget(data: *mut c_void) {
    // SAFETY: the graph is gone, and called this once.
    let launch = unsafe { Box::from_raw(data.cast::<Launch>()) };
    launch.comm.persistent.fetch_sub(1, Ordering::AcqRel);
    mailbox::interrupt();
}

fn run(launch: &Launch) {
    let comm = launch.comm;
    let mine = || {
        let mut state = comm.state();
        let turn = !state.running && launch.turn.is_none_or(|turn| turn == state.turn);
        state.running |= turn;
        turn
    };
    let got = std::cell::Cell::new(false);
    mailbox::wait_until(
        &|| {
            got.set(mine());
            got.get() || comm.stopped()
        },
        None,
    );
    if !got.get() {
        return;
    }
    let _ = all(comm, &launch.items);
    wire::flush(&comm.who().addresses, &|| comm.stopped());
    let mut state = comm.state();
    state.running = false;
    state.turn += u64::from(launch.turn.is_some());
    drop(state);
    mailbox::interrupt();
}

/// Runs sends first, because receives of the same group may wait for them; then collectives in
/// order; then operations that wait for other ranks.
fn all(comm: &Comm, items: &[Item]) -> Step {
    for item in items {
        faults(comm, item.effect)?;
    }
    let mut sends = Vec::new();
    for item in items {
        if let Work::Send { from, bytes, peer } = item.work {
            comm.send(peer, Channel::PointToPoint, 0, read(from, bytes).into());
            sends.push(peer);
        }
        if let Work::OneSided(work) = &item.work
            && work.is_outgoing()
        {
            one_sided::run(comm, work).ok_or(Stopped)?;
        }
    }
    for item in items {
        match &item.work {
            Work::Collective(collective) => run_collective(comm, collective)?,
            Work::OneSided(work) if !work.is_outgoing() => one_sided::run(comm, work).ok_or(Stopped)?,
            _ => {}
        }
    }
    for item in items {
        if let Work::Receive { to, bytes, peer } = item.work {
            let data = comm.receive(peer, Channel::PointToPoint, 0).ok_or(Stopped)?;
            if data.len() != bytes {
                return mismatch(comm, &format!("a send of {} bytes met a receive of {bytes}", data.len()));
            }
            write(to, &data);
            comm.send(peer, Channel::Acknowledge, 0, Bytes::from([]));
        }
    }
    for peer in sends {
        comm.receive(peer, Channel::Acknowledge, 0).ok_or(Stopped)?;
    }
    Ok(())
}

fn faults(comm: &Comm, effect: Effect) -> Step {
    if effect == Effect::NONE {
        return Ok(());
    }
    if effect.slow_ms > 0 && mailbox::wait_until(&|| comm.stopped(), Some(Duration::from_millis(effect.slow_ms))) {
        return Err(Stopped);
    }
    if let Some(code) = effect.async_error {
        comm.set_async_error(code);
        return stay(comm);
    }
    if effect.stuck { stay(comm) } else { Ok(()) }
}
