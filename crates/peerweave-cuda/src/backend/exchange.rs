//! Collectives that move data. Every rank puts its parts into an area of each rank's heap, all
//! ranks synchronize, and each rank copies the received parts to its result. Parts that exceed the
//! area are moved in several rounds.
//!
//! Each round uses copy engines and two barriers by the barrier kernel. This works for all memory
//! and sizes, but is slower than kernels that push results. Invariant: an area is written between
//! the first and the second barrier of a round, and read between the second barrier and the first
//! barrier of the next round.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use peerweave_core::Error;
use peerweave_core::backend::{Collective, CollectiveKind};
use peerweave_driver::{CudaStream, is_capturing, join};
use peerweave_types::SymOffset;

use super::enqueue::Enqueue;
use super::error::{driver, portable, unsupported};
use super::state::lock;
use super::teams::TeamOf;
use super::ticket::Source;
use crate::error::CudaError;

/// Offsets in bytes of a call's parts from the start of the operand and of the result; `None` for a
/// rank without a part. All parts of a call have the same length.
struct Parts {
    /// Parts to send, indexed by the receiving rank.
    sent: Vec<Option<u64>>,
    /// Parts to receive, indexed by the sending rank.
    received: Vec<Option<u64>>,
}

impl Parts {
    fn of(op: &Collective, ranks: &TeamOf, bytes: u64) -> Option<Self> {
        let (n, root) = (ranks.members.len(), op.root.index());
        // `all` has the same part for every rank, `each` a separate part for each rank.
        let (all, each) = (|| vec![Some(0); n], || (0..n as u64).map(|rank| Some(rank * bytes)).collect::<Vec<_>>());
        let none = || vec![None; n];
        let only = |rank: usize, at: u64| (0..n).map(|other| (other == rank).then_some(at)).collect::<Vec<_>>();
        let is_root = ranks.me == root;
        let (sent, received) = match op.kind {
            CollectiveKind::AllGather => (all(), each()),
            CollectiveKind::AllToAll => (each(), each()),
            CollectiveKind::Broadcast => (if is_root { all() } else { none() }, only(root, 0)),
            CollectiveKind::Gather => (only(root, 0), if is_root { each() } else { none() }),
            CollectiveKind::Scatter => (if is_root { each() } else { none() }, only(root, 0)),
            _ => return None,
        };
        Some(Self { sent, received })
    }

    /// Returns the end of the last part, in bytes.
    fn end(parts: &[Option<u64>], bytes: u64) -> usize {
        parts.iter().flatten().max().map_or(0, |last| (last + bytes) as usize)
    }
}

/// Makes a stream wait for the last work of a team on another stream, so that operations of the
/// team run one after the other, in the order in which they are enqueued while the result lives.
///
/// If one of the streams is being captured, the caller must order them.
pub(super) fn order<'a>(
    last: &'a Mutex<Option<Arc<CudaStream>>>,
    call: &'static str,
    stream: &Arc<CudaStream>,
    capturing: bool,
) -> Result<MutexGuard<'a, Option<Arc<CudaStream>>>, Error> {
    let mut last = lock(last);
    if capturing {
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
    /// Enqueues a collective that moves data among the ranks of a team.
    pub(super) fn exchange(&mut self, ranks: &TeamOf, op: &Collective) -> Result<Source, Error> {
        let (state, call) = (self.state, op.kind.name());
        let bytes = (op.count * op.dtype.size_bytes()) as u64;
        if let Some(source) = self.exchange_by_kernel(ranks, op, bytes)? {
            return Ok(source);
        }
        let Some(parts) = Parts::of(op, ranks, bytes) else {
            return Err(unsupported(
                call,
                "this collective is not implemented yet for teams of several GPUs; use puts, signals and barriers",
            ));
        };
        if ranks.members.iter().any(|pe| state.bases[pe.index()] == 0) {
            return Err(unsupported(call, "a rank is on another machine, and its memory is not mapped"));
        }
        let Range { start: area, end } = state.area(op.team);
        let slot_bytes = ((end - area) / ranks.members.len() as u64) & !255;
        let (send_bytes, recv_bytes) = (Parts::end(&parts.sent, bytes), Parts::end(&parts.received, bytes));
        let from = match op.send {
            Some(send) if send_bytes > 0 => self.reading(send, send_bytes)?,
            _ => 0,
        };
        let (to, staged) = match op.recv {
            Some(recv) if recv_bytes > 0 => self.writing(recv, recv_bytes)?,
            _ => (0, None),
        };
        self.note(SymOffset(area), (end - area) as usize);
        let mine = state.bases[state.me()] + area;
        let slot_of = |rank: usize| rank as u64 * slot_bytes;
        let mut met = self.barrier(ranks)?;
        for done in (0..bytes).step_by(slot_bytes as usize) {
            let now = slot_bytes.min(bytes - done) as usize;
            if done > 0 {
                let before = self.barrier(ranks)?;
                self.hold(before);
            }
            for (rank, at) in parts.sent.iter().enumerate() {
                if let Some(at) = at {
                    let theirs = state.bases[ranks.members[rank].index()] + area;
                    self.copy(theirs + slot_of(ranks.me), from + at + done, now)?;
                }
            }
            let now_met = self.barrier(ranks)?;
            self.hold(std::mem::replace(&mut met, now_met));
            for (rank, at) in parts.received.iter().enumerate() {
                if let Some(at) = at {
                    self.copy(to + at + done, mine + slot_of(rank), now)?;
                }
            }
        }
        self.written(staged)?;
        Ok(met)
    }

    /// Enqueues the kernel of a call if the call has a kernel and the team's staging memory can
    /// hold parts of `bytes` bytes. Staging memory is the same on all ranks of a team, so all ranks
    /// decide alike.
    fn exchange_by_kernel(&mut self, team: &TeamOf, op: &Collective, bytes: u64) -> Result<Option<Source>, Error> {
        let is_gather = match op.kind {
            CollectiveKind::AllGather => true,
            CollectiveKind::AllToAll => false,
            _ => return Ok(None),
        };
        let (Some(send), Some(recv)) = (op.send, op.recv) else { return Ok(None) };
        let Some(collectives) = &team.collectives else { return Ok(None) };
        if bytes > collectives.most_part_bytes() {
            return Ok(None);
        }
        let all = bytes as usize * collectives.members().len();
        let from = self.reading(send, if is_gather { bytes as usize } else { all })?;
        let (to, staged) = self.writing(recv, all)?;
        let enqueued = match is_gather {
            // SAFETY: the ranges have one part and one part for each rank. They are recorded or
            // held, so they stay allocated until the stream has passed the call. `peerweave-core`
            // has checked that they do not overlap except in in-place forms.
            true => unsafe { collectives.all_gather(self.stream, from, to, bytes) },
            // SAFETY: as above; both ranges have one part for each rank.
            false => unsafe { collectives.all_to_all(self.stream, from, to, bytes) },
        };
        self.enqueued(team, enqueued)?;
        self.written(staged)?;
        Ok(Some(Source::Kernel))
    }

    /// Converts the error of a collective that was not enqueued.
    pub(super) fn enqueued(&self, team: &TeamOf, enqueued: Result<(), CudaError>) -> Result<(), Error> {
        let (call, team) = (self.call, team.name());
        enqueued.map_err(|error| match self.state.poisoned(call, team) {
            Err(poisoned) => poisoned,
            Ok(()) => portable(call, team, error),
        })
    }
}
