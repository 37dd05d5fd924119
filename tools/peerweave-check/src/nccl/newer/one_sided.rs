//! Checks the one-sided calls `put_signal`, `signal` and `wait_signal`. The calls are made between
//! neighbours in a ring, among all ranks, in groups, with several signals and contexts, and in
//! graphs.
//!
//! On one machine NCCL implements these calls with copy engines and stream memory operations, so a
//! wait for a signal that never arrives cannot be aborted. Therefore all ranks synchronize on the
//! host before a rank waits for signals of other ranks.
//!
//! NCCL before 2.31 has only one signal and one context. NCCL creates both in the first one-sided
//! call, so all ranks must make this call.

use peerweave_nccl::{Communicator, Config, NcclMem, Rank, Signal, SignalWait, Switch, Version, Window, WindowKind};
use peerweave_types::{F8E4M3, F8E5M2, bf16, f16};

use super::windows::{alloc, window};
use super::{Outcome, Part, moved};
use crate::nccl::matrix::Sample;

/// Number of signals to request in each context, if NCCL supports several signals.
const SIGNALS: u32 = 4;
const CONTEXTS: u32 = 2;

/// Creates a communicator with as many signals and contexts as the checks use. Returns the
/// communicator, the number of signals and the number of contexts.
fn made(part: &Part<'_>) -> Result<(Communicator, u32, u32), super::Failed> {
    if part.is_since("more than one signal or context", Version::new(2, 31, 0)) {
        let config = Config::new().num_rma_sig(SIGNALS).num_rma_ctx(CONTEXTS);
        return Ok((part.communicator(&config)?, SIGNALS, CONTEXTS));
    }
    Ok((part.communicator(&Config::new())?, 1, 1))
}

/// Memory of a rank that all ranks can write, because it is registered as a window. The first half
/// contains the elements that the rank sends. The second half receives elements.
struct Room<T> {
    memory: NcclMem<T>,
    window: Window<T>,
    half: usize,
}

fn room<T: Sample>(part: &Part<'_>, comm: &Communicator, half: usize) -> Result<Room<T>, super::Failed> {
    let memory = alloc::<T>(part, 2 * half)?;
    let window = window(comm, &memory, WindowKind::SYMMETRIC)?;
    Ok(Room { memory, window, half })
}

impl<T: Sample> Room<T> {
    /// Fills the elements to send and clears the received elements. Returns after all ranks have
    /// filled their memory.
    fn fill(&mut self, part: &Part<'_>, seed: usize) -> Outcome {
        let mut values = moved::<T>(seed, self.half);
        values.resize(2 * self.half, T::default());
        self.memory.copy_from(&part.stream, &values)?;
        part.meet()
    }

    /// Compares the received elements with the expected elements after this rank's stream has
    /// completed. Returns after all ranks have compared their elements.
    fn verify(&self, part: &Part<'_>, comm: &Communicator, expected: &[T], what: &str) -> Outcome {
        part.wait(comm)?;
        let found = self.memory.slice(self.half..2 * self.half)?.to_vec(&part.stream)?;
        part.same(&found, expected, || what.to_owned());
        part.meet()
    }
}

pub(super) fn eager(part: &Part<'_>) -> Outcome {
    let (comm, signals, contexts) = made(part)?;
    if comm.properties().is_ok_and(|properties| properties.host_rma() == Some(false)) {
        part.note("not run: NCCL does not support one-sided calls on this machine");
        return Ok(comm.finalize(super::DEADLINE)?);
    }
    ring::<i8>(part, &comm, 4096)?;
    ring::<u8>(part, &comm, 4096)?;
    ring::<i32>(part, &comm, 4096)?;
    ring::<u32>(part, &comm, 4096)?;
    ring::<i64>(part, &comm, 4096)?;
    ring::<u64>(part, &comm, 4096)?;
    ring::<f16>(part, &comm, 4096)?;
    ring::<bf16>(part, &comm, 4096)?;
    ring::<f32>(part, &comm, 4 << 20)?;
    ring::<f64>(part, &comm, 4096)?;
    if part.is_since("8-bit floats", Version::new(2, 24, 3)) {
        ring::<F8E4M3>(part, &comm, 4096)?;
        ring::<F8E5M2>(part, &comm, 4096)?;
    }
    for context in 0..contexts {
        for index in 0..signals {
            counted(part, &comm, Signal { index, context })?;
        }
    }
    both_ways(part, &comm, signals, contexts)?;
    groups(part, &comm)?;
    part.step("finalize");
    comm.finalize(super::DEADLINE)?;
    if part.is_since("signals without registered windows", Version::new(2, 31, 0)) {
        bare(part)?;
    }
    Ok(())
}

/// Checks signals on a communicator that has no registered windows.
fn bare(part: &Part<'_>) -> Outcome {
    part.step("signals without registered windows");
    let comm = part.communicator(&Config::new().rma_eager_init(Switch::On).num_rma_sig(2))?;
    let (n, rank, stream) = (comm.n_ranks(), comm.rank().index(), &part.stream);
    let signal = Signal { index: 1, context: 0 };
    for round in 0..3 {
        part.meet()?;
        for peer in (0..n).filter(|peer| *peer != rank) {
            comm.signal(stream, Rank::new(peer as u32), signal)?;
        }
        let waits: Vec<_> = (0..n)
            .filter(|peer| *peer != rank)
            .map(|peer| SignalWait { peer: Rank::new(peer as u32), signal, count: 1 })
            .collect();
        if !waits.is_empty() {
            comm.wait_signal(stream, &waits)?;
        }
        let done = part.wait(&comm);
        part.check(done.is_ok(), || format!("the wait for signals without registered windows failed in round {round}"));
        done?;
    }
    Ok(comm.finalize(super::DEADLINE)?)
}

fn next_and_before(comm: &Communicator) -> (usize, usize) {
    let n = comm.n_ranks();
    ((comm.rank().index() + 1) % n, (comm.rank().index() + n - 1) % n)
}

/// Checks puts from each rank to the next rank, with several offsets and lengths.
fn ring<T: Sample>(part: &Part<'_>, comm: &Communicator, half: usize) -> Outcome {
    let (next, before) = next_and_before(comm);
    let mut room = room::<T>(part, comm, half)?;
    for (round, (from, to, len)) in
        [(0, 0, 1), (0, 1, 1), (3, 5, 17), (1, 0, half - 1), (0, 0, half), (half - 1, half - 1, 1)].into_iter().enumerate()
    {
        part.step(&format!("puts in a ring, type {}: {len} elements from index {from} to index {to}", T::DTYPE));
        room.fill(part, comm.rank().index() + round)?;
        let source = room.memory.slice(from..from + len)?;
        comm.put_signal(&part.stream, &source, Rank::new(next as u32), &room.window, half + to, Signal::default())?;
        comm.wait_signal(&part.stream, &[SignalWait { peer: Rank::new(before as u32), signal: Signal::default(), count: 1 }])?;
        let mut expected = vec![T::default(); half];
        expected[to..to + len].copy_from_slice(&moved::<T>(before + round, half)[from..from + len]);
        room.verify(
            part,
            comm,
            &expected,
            &format!("put_signal of {len} elements of type {} from index {from} to index {to}", T::DTYPE),
        )?;
    }
    part.step(&format!("deregistering the window of type {}", T::DTYPE));
    Ok(room.window.deregister(&part.stream, super::DEADLINE)?)
}

/// Checks that signals are counted. Each rank sends five signals to the next rank: three with a
/// put, and two without data. Each rank waits for the five signals of the previous rank in three
/// calls. Also checks a put from a rank to itself.
fn counted(part: &Part<'_>, comm: &Communicator, signal: Signal) -> Outcome {
    const LEN: usize = 300;
    part.step(&format!("waiting for five signals in three calls, with {signal:?}"));
    let (next, before) = next_and_before(comm);
    let stream = &part.stream;
    let mut room = room::<u32>(part, comm, 3 * LEN)?;
    room.fill(part, comm.rank().index())?;
    for piece in 0..3 {
        let source = room.memory.slice(piece * LEN..(piece + 1) * LEN)?;
        comm.put_signal(stream, &source, Rank::new(next as u32), &room.window, room.half + piece * LEN, signal)?;
    }
    comm.signal(stream, Rank::new(next as u32), signal)?;
    comm.signal(stream, Rank::new(next as u32), signal)?;
    for count in [1, 3, 1] {
        comm.wait_signal(stream, &[SignalWait { peer: Rank::new(before as u32), signal, count }])?;
    }
    room.verify(part, comm, &moved::<u32>(before, 3 * LEN), &format!("three puts with {signal:?}"))?;
    part.step(&format!("a put from a rank to itself with {signal:?}"));
    room.fill(part, comm.rank().index() + 9)?;
    let source = room.memory.slice(0..3 * LEN)?;
    comm.put_signal(stream, &source, comm.rank(), &room.window, room.half, signal)?;
    comm.wait_signal(stream, &[SignalWait { peer: comm.rank(), signal, count: 1 }])?;
    room.verify(
        part,
        comm,
        &moved::<u32>(comm.rank().index() + 9, 3 * LEN),
        &format!("a put from a rank to itself with {signal:?}"),
    )?;
    part.step("deregistering the window");
    Ok(room.window.deregister(stream, super::DEADLINE)?)
}

/// Checks puts from every rank to every rank. Each rank also sends a put to itself. Each rank
/// writes to its own range of the receiver's window, and each receiver waits once for the puts of
/// all ranks.
fn both_ways(part: &Part<'_>, comm: &Communicator, signals: u32, contexts: u32) -> Outcome {
    const LEN: usize = 10_007;
    let (n, rank, stream) = (comm.n_ranks(), comm.rank().index(), &part.stream);
    let mut room = room::<f32>(part, comm, n * LEN)?;
    for context in 0..contexts {
        part.step(&format!("puts from all ranks to all ranks in context {context}"));
        let signal = |of: usize| Signal { index: of as u32 % signals, context };
        room.fill(part, rank + context as usize)?;
        for peer in 0..n {
            let source = room.memory.slice(peer * LEN..(peer + 1) * LEN)?;
            comm.put_signal(stream, &source, Rank::new(peer as u32), &room.window, room.half + rank * LEN, signal(rank))?;
        }
        let waits: Vec<_> =
            (0..n).map(|peer| SignalWait { peer: Rank::new(peer as u32), signal: signal(peer), count: 1 }).collect();
        comm.wait_signal(stream, &waits)?;
        let from = |peer: usize| moved::<f32>(peer + context as usize, n * LEN)[rank * LEN..(rank + 1) * LEN].to_vec();
        let expected: Vec<f32> = (0..n).flat_map(from).collect();
        room.verify(part, comm, &expected, &format!("elements received from all ranks in context {context}"))?;
    }
    part.step("deregistering the window");
    Ok(room.window.deregister(stream, super::DEADLINE)?)
}

/// Checks a group of calls. The group contains puts to both neighbours in the ring, and the wait
/// for the puts of both neighbours.
fn groups(part: &Part<'_>, comm: &Communicator) -> Outcome {
    const LEN: usize = 5000;
    let ((next, before), stream, signal) = (next_and_before(comm), &part.stream, Signal::default());
    let mut room = room::<i64>(part, comm, 2 * LEN)?;
    for round in 0..3 {
        part.step(&format!("group {round}"));
        room.fill(part, comm.rank().index() + round)?;
        let (first, second) = (room.memory.slice(0..LEN)?, room.memory.slice(LEN..2 * LEN)?);
        let waits = |peer| SignalWait { peer, signal, count: 1 };
        // With two ranks, both neighbours are the same rank, which signals twice.
        let waits = if next == before {
            vec![SignalWait { count: 2, ..waits(Rank::new(next as u32)) }]
        } else {
            vec![waits(Rank::new(next as u32)), waits(Rank::new(before as u32))]
        };
        part.nccl().group(|group| {
            group.put_signal(comm, stream, &first, Rank::new(next as u32), &room.window, room.half, signal)?;
            group.put_signal(comm, stream, &second, Rank::new(before as u32), &room.window, room.half + LEN, signal)?;
            group.wait_signal(comm, stream, &waits)
        })?;
        let mut expected = moved::<i64>(before + round, 2 * LEN);
        expected.truncate(LEN);
        expected.extend_from_slice(&moved::<i64>(next + round, 2 * LEN)[LEN..]);
        room.verify(part, comm, &expected, &format!("a group with puts in both directions, round {round}"))?;
    }
    part.step("deregistering the window");
    Ok(room.window.deregister(stream, super::DEADLINE)?)
}

/// Captures two calls into a graph: a put to the next rank, and the wait for the put of the
/// previous rank. Launches the graph three times. Between two of the launches, makes the same two
/// calls once without the graph.
///
/// There is only one put before each wait, because inside a graph NCCL does not complete a second
/// put until the receiver has waited for the first.
pub(super) fn captured(part: &Part<'_>) -> Outcome {
    const LEN: usize = 20_000;
    if !part.is_since("one-sided calls in graphs", Version::new(2, 30, 3)) {
        return Ok(());
    }
    let comm = part.communicator(&Config::new())?;
    if comm.properties().is_ok_and(|properties| properties.host_rma() == Some(false)) {
        part.note("not run: NCCL does not support one-sided calls on this machine");
        return Ok(comm.finalize(super::DEADLINE)?);
    }
    let ((next, before), stream, signal) = (next_and_before(&comm), &part.stream, Signal::default());
    let mut room = room::<f32>(part, &comm, LEN)?;
    let source = room.memory.slice(0..LEN)?;
    let wait = [SignalWait { peer: Rank::new(before as u32), signal, count: 1 }];
    let put = || {
        comm.put_signal(stream, &source, Rank::new(next as u32), &room.window, LEN, signal)
            .and_then(|()| comm.wait_signal(stream, &wait))
    };
    part.step("a put before the capture");
    put()?;
    part.wait(&comm)?;
    part.meet()?;
    part.step("capturing");
    let graph = part.capture(put)?;
    for round in 0..4 {
        part.step(&format!("launch {round}"));
        let mut values = moved::<f32>(comm.rank().index() + round, LEN);
        values.resize(2 * LEN, 0.0);
        room.memory.copy_from(stream, &values)?;
        part.meet()?;
        if round == 2 {
            comm.put_signal(stream, &source, Rank::new(next as u32), &room.window, LEN, signal)?;
            comm.wait_signal(stream, &wait)?;
        } else {
            graph.launch()?;
        }
        part.wait(&comm)?;
        let found = room.memory.slice(LEN..2 * LEN)?.to_vec(stream)?;
        part.same(&found, &moved::<f32>(before + round, LEN), || format!("a captured put, round {round}"));
        part.meet()?;
    }
    drop((graph, room));
    part.step("finalize");
    Ok(comm.finalize(super::DEADLINE)?)
}
