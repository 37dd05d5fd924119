//! Launches the operations of a group on their streams.
//!
//! Module `execute` runs the operations when their streams reach them. Invariant: launches get
//! their positions in the order in which streams run them.

use std::sync::atomic::Ordering;

use super::exchange::everybody;
use super::execute::{Launch, forget, run_again, run_once};
use super::work::{Item, Work};
use crate::abi::{Code, Result, driver, fail, misuse};
use crate::comm::Comm;
use crate::messages::Channel;
use crate::settings;

/// An operation that is launched at the end of the group.
pub(crate) struct Operation {
    pub(crate) comm: &'static Comm,
    pub(crate) stream: usize,
    pub(crate) item: Item,
    /// Event to record at the launch.
    pub(crate) event: Option<usize>,
}

/// Returns an error for a send to the calling rank without a receive in the same group, because the
/// send would wait forever.
pub(super) fn check_sends_to_self(operations: &[Operation]) -> Result {
    for operation in operations {
        let me = operation.comm.who().rank;
        let count = |wanted: fn(&Work) -> Option<i32>| {
            let same = operations.iter().filter(|other| std::ptr::eq(other.comm, operation.comm));
            same.filter(|other| wanted(&other.item.work) == Some(me)).count()
        };
        let sends = count(|work| if let Work::Send { peer, .. } = work { Some(*peer) } else { None });
        let receives = count(|work| if let Work::Receive { peer, .. } = work { Some(*peer) } else { None });
        if sends > receives {
            return misuse("Trying to send to self without a matching recv");
        }
        if receives > sends {
            return misuse("Trying to recv to self without a matching send");
        }
    }
    Ok(())
}

/// Waits for the other ranks of each communicator whose first collective is among the operations,
/// if the setting `CONNECT` requires that.
pub(super) fn connect(operations: &[Operation]) -> Result {
    if !settings::get().connect {
        return Ok(());
    }
    let collectives = operations.iter().filter(|operation| matches!(operation.item.work, Work::Collective(_)));
    let first = |comm: &&'static Comm| !std::mem::replace(&mut comm.state().connected, true);
    let comms: Vec<&'static Comm> = collectives.map(|operation| operation.comm).filter(first).collect();
    // All communicators of this thread send before any of them waits.
    for comm in &comms {
        everybody(comm).into_iter().for_each(|rank| comm.send(rank, Channel::Connect, 0, [].into()));
    }
    for comm in &comms {
        for rank in everybody(comm) {
            if comm.receive_until(rank, Channel::Connect, 0, &|| comm.stopped()).is_none() {
                return fail(Code::InternalError, "connecting the ranks was aborted");
            }
        }
    }
    Ok(())
}

/// Enqueues each communicator's operations on its stream; several streams are ordered as in NCCL.
pub(super) fn launch(operations: Vec<Operation>) -> Result {
    let mut parts: Vec<(&'static Comm, Vec<Operation>)> = Vec::new();
    for operation in operations.into_iter().filter(|operation| !matches!(operation.item.work, Work::Nothing)) {
        match parts.iter_mut().find(|(comm, _)| std::ptr::eq(*comm, operation.comm)) {
            Some((_, part)) => part.push(operation),
            None => parts.push((operation.comm, vec![operation])),
        }
    }
    for (comm, part) in parts {
        driver::with_context(comm.context, || launch_part(comm, part))?;
    }
    Ok(())
}

fn launch_part(comm: &'static Comm, part: Vec<Operation>) -> Result {
    let stream = part[0].stream;
    let mut others: Vec<usize> = part.iter().map(|operation| operation.stream).filter(|other| *other != stream).collect();
    others.sort_unstable();
    others.dedup();
    for other in &others {
        driver::join(*other, stream)?;
    }
    let events: Vec<usize> = part.iter().filter_map(|operation| operation.event).collect();
    let items = part.into_iter().map(|operation| operation.item).collect();
    if driver::is_capturing(stream)? {
        let launch = Box::into_raw(Box::new(Launch { comm, items, turn: None })).cast();
        comm.persistent.fetch_add(1, Ordering::AcqRel);
        if let Err(failure) = driver::keep_in_graph(stream, launch, forget) {
            forget(launch);
            return Err(failure.into());
        }
        driver::launch(stream, run_again, launch)?;
    } else {
        // The lock is held over the launch, so that turns are given in the order of the streams.
        let mut state = comm.state();
        let turn = state.launched;
        let launch = Box::into_raw(Box::new(Launch { comm, items, turn: Some(turn) })).cast();
        if let Err(failure) = driver::launch(stream, run_once, launch) {
            // SAFETY: the driver refused the launch, so no other code has it.
            drop(unsafe { Box::from_raw(launch.cast::<Launch>()) });
            return Err(failure.into());
        }
        state.launched = turn + 1;
    }
    for event in events {
        driver::record(event, stream)?;
    }
    for other in others {
        driver::join(stream, other)?;
    }
    Ok(())
}
