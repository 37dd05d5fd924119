//! Runs a launch when its stream reaches it: the ranks synchronize, exchange data and compute.
//!
//! `group` launches; `window` defines the effects on windows. Invariant: a communicator's launches
//! run one after another in the order in which they were enqueued, on any streams, as in NCCL.

use core::ffi::c_void;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::comm::{Comm, undefined};
use crate::compute::{self, DType, Op};
use crate::faults::Effect;
use crate::mailbox::{self, Bytes, Channel};
use crate::window::{self, OneSided};
use crate::wire;

/// Kind of collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
}

/// A collective of one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Collective {
    pub(crate) kind: Kind,
    pub(crate) send: usize,
    pub(crate) receive: usize,
    pub(crate) count: usize,
    pub(crate) dtype: DType,
    pub(crate) op: Op,
    pub(crate) root: i32,
}

/// The work of one call.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Collective(Collective),
    Send {
        from: usize,
        bytes: usize,
        peer: i32,
    },
    Receive {
        to: usize,
        bytes: usize,
        peer: i32,
    },
    OneSided(OneSided),
    /// No work: the mode without work.
    Nothing,
}

/// One call's work with its injected faults.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) work: Work,
    pub(crate) effect: Effect,
}

/// The work that one call enqueues on a stream: a communicator's part of a group.
pub(crate) struct Launch {
    pub(crate) comm: &'static Comm,
    pub(crate) items: Vec<Item>,
    /// Position in the order of launches; `None` in a graph, which runs at each graph launch.
    pub(crate) turn: Option<u64>,
}

/// Reason for an early end of a launch: an abort, a revocation, or an injected hang that an abort
/// ended.
struct Stopped;

type Step<T = ()> = Result<T, Stopped>;

/// Runs a launch once and frees it.
pub(crate) extern "C" fn run_once(data: *mut c_void) {
    // SAFETY: the launch was boxed for this call alone.
    let launch = unsafe { Box::from_raw(data.cast::<Launch>()) };
    run(&launch);
}

/// Runs a launch that a graph holds.
pub(crate) extern "C" fn run_again(data: *mut c_void) {
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
pub(crate) extern "C" fn forget(data: *mut c_void) {
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
        if let Work::OneSided(one_sided) = &item.work
            && one_sided.is_outgoing()
        {
            window::run(comm, one_sided).ok_or(Stopped)?;
        }
    }
    for item in items {
        match &item.work {
            Work::Collective(collective) => run_collective(comm, collective)?,
            Work::OneSided(one_sided) if !one_sided.is_outgoing() => window::run(comm, one_sided).ok_or(Stopped)?,
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

/// Waits until the communicator is stopped.
fn stay(comm: &Comm) -> Step {
    mailbox::wait_until(&|| comm.stopped(), None);
    Err(Stopped)
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

/// Waits forever, as NCCL does if ranks disagree, and logs the reason.
fn mismatch(comm: &Comm, what: &str) -> Step {
    crate::log::line(&format!("mismatch at rank {}: {what}", comm.who().rank));
    stay(comm)
}

pub(crate) fn read(address: usize, bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; bytes];
    if bytes > 0 {
        // SAFETY: the program promised this many readable bytes until the operation is complete;
        // device memory is host memory here.
        unsafe { std::ptr::copy(std::ptr::with_exposed_provenance::<u8>(address), copy.as_mut_ptr(), bytes) };
    }
    copy
}

pub(crate) fn write(address: usize, bytes: &[u8]) {
    if !bytes.is_empty() {
        // SAFETY: the program promised this many writable bytes until the operation is complete;
        // device memory is host memory here.
        unsafe { std::ptr::copy(bytes.as_ptr(), std::ptr::with_exposed_provenance_mut::<u8>(address), bytes.len()) };
    }
}

const HEAD: usize = 16;

fn head(collective: &Collective) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = collective.kind as u8;
    head[1] = collective.dtype as u8;
    head[2] = collective.op.number();
    head[4..8].copy_from_slice(&collective.root.to_le_bytes());
    head[8..].copy_from_slice(&(collective.count as u64).to_le_bytes());
    head
}

fn run_collective(comm: &Comm, collective: &Collective) -> Step {
    let Collective { kind, send, receive, count, dtype, op, root } = *collective;
    let members = comm.who();
    let (rank, ranks) = (members.rank, members.ranks());
    let everybody = 0..ranks;
    let bytes = count * dtype.size();
    let number = {
        let mut state = comm.state();
        state.collective += 1;
        state.collective
    };
    let head = head(collective);
    let message = |data: &[u8]| -> Bytes { [&head[..], data].concat().into() };
    let post = |to: i32, message: Bytes| comm.send(to, Channel::Collective, number, message);
    // Returns the data of one rank. If it does not match this rank's call, waits until the
    // communicator is stopped.
    let get = |from: i32, length: usize| -> Step<Bytes> {
        let message = comm.receive(from, Channel::Collective, number).ok_or(Stopped)?;
        if message[..HEAD] != head || message.len() != HEAD + length {
            mismatch(comm, &format!("collective {number}: rank {from} sent {:?}, expected {head:?}", &message[..HEAD]))?;
        }
        Ok(message)
    };
    let part = |index: i32| index as usize * bytes;
    let reduced = |length: usize| -> Step<Vec<u8>> {
        let mut total = get(0, length)?[HEAD..].to_vec();
        for from in 1..ranks {
            compute::combine(&mut total, &get(from, length)?[HEAD..], op, dtype);
        }
        compute::finish(&mut total, op, dtype, ranks as u32);
        Ok(total)
    };
    let prepared = |length: usize| {
        let mut data = read(send, length);
        compute::prepare(&mut data, op, dtype, ranks as u32);
        data
    };
    match kind {
        Kind::AllReduce => {
            let data = message(&prepared(bytes));
            everybody.for_each(|to| post(to, data.clone()));
            write(receive, &reduced(bytes)?);
        }
        Kind::Reduce => {
            post(root, message(&prepared(bytes)));
            if rank == root {
                write(receive, &reduced(bytes)?);
            }
        }
        Kind::ReduceScatter => {
            let data = prepared(part(ranks));
            everybody.for_each(|to| post(to, message(&data[part(to)..part(to + 1)])));
            write(receive, &reduced(bytes)?);
        }
        Kind::Broadcast => {
            if rank == root {
                let data = message(&read(send, bytes));
                everybody.for_each(|to| post(to, data.clone()));
            }
            write(receive, &get(root, bytes)?[HEAD..]);
        }
        Kind::AllGather => {
            let data = message(&read(send, bytes));
            everybody.clone().for_each(|to| post(to, data.clone()));
            for from in everybody {
                write(receive + part(from), &get(from, bytes)?[HEAD..]);
            }
        }
        Kind::AllToAll => {
            let data = read(send, part(ranks));
            everybody.clone().for_each(|to| post(to, message(&data[part(to)..part(to + 1)])));
            for from in everybody {
                write(receive + part(from), &get(from, bytes)?[HEAD..]);
            }
        }
        Kind::Gather => {
            post(root, message(&read(send, bytes)));
            if rank == root {
                for from in everybody {
                    write(receive + part(from), &get(from, bytes)?[HEAD..]);
                }
            }
        }
        Kind::Scatter => {
            if rank == root {
                let data = read(send, part(ranks));
                everybody.for_each(|to| post(to, message(&data[part(to)..part(to + 1)])));
            }
            write(receive, &get(root, bytes)?[HEAD..]);
        }
    }
    Ok(())
}
