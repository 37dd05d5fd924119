//! Collectives, sends and receives, by the kernels of `collective`.

use std::sync::{Arc, Mutex, MutexGuard};

use peerweave_core::Error;
use peerweave_core::backend::{Collective, CollectiveKind, Direction, Op, Place, PointToPoint};
use peerweave_driver::{CudaStream, is_capturing, join};
use peerweave_types::{Rank, ReduceOp};

use super::enqueue::Enqueue;
use super::error::{driver, portable, unsupported};
use super::state::lock;
use super::teams::TeamOf;
use super::ticket::Source;
use crate::collective::{Collectives, Message};
use crate::error::CudaError;

/// Reason why a team has no collectives.
pub(super) const NO_KERNELS: &str =
    "its members are on several machines or more than 8, or the heap has no room for their staging memory";

/// Puts the work of a stream behind the last work of a team on another stream: its collectives,
/// sends and receives run one after the other, in the order in which they are enqueued while the
/// result lives.
///
/// Where one of the streams is being captured, the caller orders them.
pub(super) fn order<'a>(
    last: &'a Mutex<Option<Arc<CudaStream>>>,
    call: &'static str,
    stream: &Arc<CudaStream>,
    capturing: bool,
) -> Result<MutexGuard<'a, Option<Arc<CudaStream>>>, Error> {
    let mut last = lock(last);
    if capturing || last.as_ref().is_some_and(|other| Arc::ptr_eq(other, stream)) {
        return Ok(last);
    }
    if let Some(other) = &*last
        && other.cu_stream() != stream.cu_stream()
        && matches!(is_capturing(other), Ok(false))
    {
        join(stream, other).map_err(|error| driver(call, error))?;
    }
    *last = Some(Arc::clone(stream));
    Ok(last)
}

impl Enqueue<'_> {
    /// The kernels of a team of several ranks.
    pub(super) fn collectives<'t>(&self, team: &'t TeamOf) -> Result<&'t Collectives, Error> {
        team.collectives.as_ref().ok_or_else(|| unsupported(self.call, NO_KERNELS))
    }

    /// Returns the error of a call that was not enqueued.
    pub(super) fn enqueued(&self, team: &TeamOf, enqueued: Result<(), CudaError>) -> Result<Source, Error> {
        match enqueued {
            Ok(()) => Ok(Source::Kernel),
            Err(error) => match self.state.poisoned(self.call, team.name()) {
                Err(poisoned) => Err(poisoned),
                Ok(()) => Err(portable(self.call, team.name(), error)),
            },
        }
    }

    /// Enqueues a barrier.
    pub(super) fn meet(&mut self, team: &TeamOf) -> Result<Source, Error> {
        let enqueued = self.collectives(team)?.barrier(self.stream);
        self.enqueued(team, enqueued)
    }

    /// Enqueues a collective that moves data among the ranks of a team.
    pub(super) fn exchange(&mut self, team: &TeamOf, op: &Collective) -> Result<Source, Error> {
        use CollectiveKind::{AllGather, AllToAll, Gather, Scatter};
        let (collectives, n) = (self.collectives(team)?, team.members.len());
        let bytes = op.count * op.dtype.size_bytes();
        let sent = if matches!(op.kind, AllToAll | Scatter) { n * bytes } else { bytes };
        let received = if matches!(op.kind, AllGather | AllToAll | Gather) { n * bytes } else { bytes };
        let from = op.send.map_or(Ok(0), |send| self.reading(send, sent))?;
        let (to, staged) = op.recv.map_or(Ok((0, None)), |recv| self.writing(recv, received))?;
        // In place the operand is part of the result, which memory of the host has copies of.
        let (stream, bytes, root) = (self.stream, bytes as u64, op.root);
        // SAFETY: the ranges have a part, or a part of each rank, which stay allocated until the
        // stream has passed the call: they are noted or held. The core has checked that they do not
        // overlap but for forms in place. A rank that has no operand, or no result, is none that
        // accesses it.
        let enqueued = unsafe {
            match op.kind {
                AllGather => collectives.all_gather(stream, from, to, bytes),
                AllToAll => collectives.all_to_all(stream, from, to, bytes),
                Gather => collectives.gather(stream, from, to, bytes, root),
                Scatter => collectives.scatter(stream, from, to, bytes, root),
                kind => {
                    assert_eq!(kind, CollectiveKind::Broadcast, "peerweave-cuda bug: it does not move data");
                    collectives.broadcast(stream, from, to, bytes, root)
                }
            }
        };
        let source = self.enqueued(team, enqueued)?;
        self.written(staged)?;
        Ok(source)
    }

    /// Enqueues a reduction.
    pub(super) fn reduce(&mut self, team: &TeamOf, op: &Collective) -> Result<Source, Error> {
        use CollectiveKind::{ExclusiveScan, Reduce, ReduceScatter, Scan};
        let (collectives, n) = (self.collectives(team)?, team.members.len());
        let part = op.count * op.dtype.size_bytes();
        let bytes = if op.kind == ReduceScatter { n * part } else { part };
        let send = op.send.unwrap_or_else(|| panic!("peerweave-core bug: a {} without an operand", self.call));
        let from = self.reading(send, bytes)?;
        // An exclusive scan has no result on rank 0, whose kernel writes nothing.
        let (to, staged) = match op.recv {
            Some(recv) if op.kind != ExclusiveScan || team.me != 0 => self.writing(recv, part)?,
            _ => (from, None),
        };
        let (stream, count, dtype, scalar) = (self.stream, op.count as u64, op.dtype, op.scalar);
        let is_scaled = op.op == ReduceOp::PreMulSum;
        // SAFETY: the ranges have so many elements, and for a reduce_scatter a part of each rank;
        // they stay allocated until the stream has passed the call: they are noted or held. The
        // core has checked that they do not overlap but for forms in place.
        let enqueued = unsafe {
            match (op.kind, is_scaled) {
                (Reduce, false) => collectives.reduce(stream, from, to, count, dtype, op.op, op.root),
                (Reduce, true) => collectives.reduce_scaled(stream, from, to, count, dtype, scalar, op.root),
                (ReduceScatter, false) => collectives.reduce_scatter(stream, from, to, count, dtype, op.op),
                (ReduceScatter, true) => collectives.reduce_scatter_scaled(stream, from, to, count, dtype, scalar),
                (Scan, _) => collectives.scan(stream, from, to, count, dtype, op.op, scalar),
                (ExclusiveScan, _) => collectives.exclusive_scan(stream, from, to, count, dtype, op.op, scalar),
                (_, false) => collectives.all_reduce(stream, from, to, count, dtype, op.op),
                (_, true) => collectives.all_reduce_scaled(stream, from, to, count, dtype, scalar),
            }
        };
        let source = self.enqueued(team, enqueued)?;
        self.written(staged)?;
        Ok(source)
    }

    /// Enqueues sends and receives that run at the same time, those of each team by one call.
    pub(super) fn transfers<'o>(&mut self, ops: impl Iterator<Item = &'o PointToPoint> + Clone) -> Result<Source, Error> {
        let mut source = Source::Copy;
        for (number, first) in ops.clone().enumerate() {
            if ops.clone().take(number).any(|earlier| earlier.team == first.team) {
                continue;
            }
            let team = &*self.state.team(self.call, first.team)?;
            self.state.poisoned(self.call, team.name())?;
            let _order = order(&team.order, self.call, self.stream, self.capturing)?;
            let (mut messages, mut results) = self.state.take_lists();
            for op in ops.clone().filter(|op| op.team == first.team) {
                let bytes = op.count * op.dtype.size_bytes();
                messages.push(match op.direction {
                    Direction::Send => Message::Send { to: op.peer, at: self.reading(op.at, bytes)?, bytes: bytes as u64 },
                    Direction::Receive => {
                        let (at, staged) = self.writing(op.at, bytes)?;
                        results.extend(staged);
                        Message::Receive { from: op.peer, at, bytes: bytes as u64 }
                    }
                });
            }
            source = self.messages(team, &messages)?;
            results.drain(..).try_for_each(|staged| self.written(Some(staged)))?;
            self.state.give_back_lists(messages, results);
        }
        Ok(source)
    }

    fn messages(&mut self, team: &TeamOf, messages: &[Message]) -> Result<Source, Error> {
        let collectives = self.collectives(team)?;
        // SAFETY: the ranges stay allocated until the stream has passed the call: they are noted or
        // held. The core has checked that results overlap nothing.
        let enqueued = unsafe { collectives.messages(self.stream, messages) };
        self.enqueued(team, enqueued)
    }

    /// Enqueues a collective with parts of different lengths: a send and a receive for each part.
    pub(super) fn vector(&mut self, team: &TeamOf, op: &Collective) -> Result<Source, Error> {
        let counts = op.counts.as_ref().unwrap_or_else(|| panic!("peerweave-core bug: a {} without counts", self.call));
        let size = op.dtype.size_bytes();
        let bytes = |offsets: &[usize], counts: &[usize]| {
            let parts = offsets.iter().zip(counts).filter(|(_, count)| **count > 0);
            size * parts.map(|(offset, count)| offset + count).max().unwrap_or(0)
        };
        let sent = bytes(&counts.send_offsets, &counts.send_counts);
        let mut from = op.send.map_or(Ok(0), |send| self.reading(send, sent))?;
        if op.kind == CollectiveKind::AllToAllV && op.send == op.recv {
            // A part that arrives would overwrite one that was not sent yet.
            let scratch = self.scratch(sent)?;
            self.copy(scratch, from, sent)?;
            from = scratch;
        }
        let received = bytes(&counts.recv_offsets, &counts.recv_counts);
        // What lies between the parts of a result in memory of the host stays.
        let before = match op.recv {
            Some(recv @ Place::Private(_)) => Some(self.reading(recv, received)?),
            _ => None,
        };
        let (to, staged) = op.recv.map_or(Ok((0, None)), |recv| self.writing(recv, received))?;
        if let Some(before) = before {
            self.copy(to, before, received)?;
        }
        let part =
            |offset: usize, count: usize| if count == 0 { (0, 0) } else { ((offset * size) as u64, (count * size) as u64) };
        let sent_to = |rank: usize| part(counts.send_offsets[rank], counts.send_counts[rank]);
        let received_from = |rank: usize| part(counts.recv_offsets[rank], counts.recv_counts[rank]);
        // In place, the part of this rank is where it belongs.
        let is_there = from + sent_to(team.me).0 == to + received_from(team.me).0;
        let is_message =
            |rank: usize, bytes: u64| op.kind == CollectiveKind::AllToAllV || (bytes > 0 && !(is_there && rank == team.me));
        let (mut messages, results) = self.state.take_lists();
        for rank in 0..team.members.len() {
            let ((at, bytes), to) = (sent_to(rank), Rank::new(rank as u32));
            if is_message(rank, bytes) {
                messages.push(Message::Send { to, at: from + at, bytes });
            }
        }
        for rank in 0..team.members.len() {
            let ((at, bytes), from) = (received_from(rank), Rank::new(rank as u32));
            if is_message(rank, bytes) {
                messages.push(Message::Receive { from, at: to + at, bytes });
            }
        }
        let source = self.messages(team, &messages)?;
        self.state.give_back_lists(messages, results);
        self.written(staged)?;
        Ok(source)
    }
}

/// The sends and receives of a group.
pub(super) fn transfers_of(ops: &[Op]) -> impl Iterator<Item = &PointToPoint> + Clone {
    ops.iter().filter_map(|op| if let Op::PointToPoint(op) = op { Some(op) } else { None })
}
