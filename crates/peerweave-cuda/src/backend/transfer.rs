//! Sends and receives: a mailbox for each pair of ranks, with room for one chunk.
//!
//! The sender waits until the receiver has emptied the mailbox, puts a chunk into the receiver's
//! heap and signals the chunk's number. The receiver waits for that number, copies the chunk, and
//! signals the number back. Numbers continue over all transfers of a pair, so sends and receives
//! match in the order of their calls. The numbers are part of the enqueued work. A graph would
//! replay old numbers, so transfers cannot be captured.
//!
//! The layout of the mailboxes of a team of `n` ranks: for each rank, a word with the number of
//! chunks that it has sent to this rank; for each rank, a word with the number of chunks that it
//! has taken from this rank; then a slot for each rank. Invariant: only its rank writes a word or a
//! slot.

use std::ops::Range;

use peerweave_core::Error;
use peerweave_core::backend::{Collective, Direction, Op, Place, Signal, TeamId, Until, WaitMode, WaitUntil};
use peerweave_types::{Compare, Rank, SignalOp, SymOffset};

use super::enqueue::Enqueue;
use super::error::unsupported;
use super::exchange::order;
use super::staging::Staged;
use super::state::{State, lock};
use super::teams::TeamOf;
use super::ticket::Source;

/// One send or receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    direction: Direction,
    team: TeamId,
    peer: Rank,
    at: Place,
    bytes: usize,
}

impl Transfer {
    /// Returns the transfer of an operation; `None` for operations that transfer nothing.
    pub(super) fn of(op: &Op) -> Option<Self> {
        let Op::PointToPoint(op) = op else { return None };
        let bytes = op.count * op.dtype.size_bytes();
        Some(Self { direction: op.direction, team: op.team, peer: op.peer, at: op.at, bytes })
    }
}

/// The words of the mailboxes of a team.
pub(super) fn words(state: &State, team: TeamId, n: usize) -> Range<u64> {
    let start = state.mailboxes(team).start;
    start..start + (16 * n as u64).next_multiple_of(256)
}

/// The remaining chunks of one direction between this rank and another rank.
struct Queue {
    send: bool,
    peer: usize,
    /// Addresses and lengths of the chunks, last first.
    chunks: Vec<(u64, usize)>,
}

impl Enqueue<'_> {
    /// Enqueues transfers that run at the same time, in rounds of one chunk for each pair of ranks.
    pub(super) fn transfers(&mut self, transfers: &[Transfer]) -> Result<Source, Error> {
        let Some(first) = transfers.first() else { return Ok(Source::Copy) };
        let (call, team) = (self.call, first.team);
        if transfers.iter().any(|transfer| transfer.team != team) {
            return Err(unsupported(
                call,
                "transfers of several teams in one group are not implemented yet; use one group for each team",
            ));
        }
        if self.capturing {
            return Err(unsupported(call, "sends and receives cannot be captured into a graph; use puts with signals"));
        }
        let state = self.state;
        let ranks = &*state.team(call, team)?;
        state.poisoned(call, ranks.name())?;
        let _order = order(&ranks.transfer_order, call, self.stream, false)?;
        let layout = Layout::new(state, ranks);
        let (mut queues, results) = self.queues(transfers, &layout)?;
        self.note(SymOffset(layout.words.start), (layout.end - layout.words.start) as usize);
        let mut counts = lock(&ranks.chunks);
        let mut source = Source::Copy;
        while queues.iter().any(|queue| !queue.chunks.is_empty()) {
            // All sends of a round precede its receives, so that no two ranks wait for each other.
            for send in [true, false] {
                for queue in queues.iter_mut().filter(|queue| queue.send == send) {
                    let Some((at, bytes)) = queue.chunks.pop() else { continue };
                    let count = &mut counts[queue.peer][usize::from(!send)];
                    *count += 1;
                    let next = self.chunk(ranks, &layout, queue, *count, at, bytes)?;
                    self.hold(std::mem::replace(&mut source, next));
                }
            }
        }
        for staged in results {
            self.written(Some(staged))?;
        }
        Ok(source)
    }

    /// Returns the chunks of each pair and direction in the order of the calls, and the staged
    /// memory.
    fn queues(&mut self, transfers: &[Transfer], layout: &Layout) -> Result<(Vec<Queue>, Vec<Staged>), Error> {
        let (mut queues, mut results): (Vec<Queue>, Vec<Staged>) = (Vec::new(), Vec::new());
        for transfer in transfers.iter().filter(|transfer| transfer.bytes > 0) {
            let (send, peer) = (transfer.direction == Direction::Send, transfer.peer.index());
            let start = if send {
                self.reading(transfer.at, transfer.bytes)?
            } else {
                let (start, staged) = self.writing(transfer.at, transfer.bytes)?;
                results.extend(staged);
                start
            };
            let at = match queues.iter().position(|queue| (queue.send, queue.peer) == (send, peer)) {
                Some(at) => at,
                None => {
                    queues.push(Queue { send, peer, chunks: Vec::new() });
                    queues.len() - 1
                }
            };
            let chunks = (0..transfer.bytes).step_by(layout.slot_bytes);
            queues[at].chunks.extend(chunks.map(|done| (start + done as u64, layout.slot_bytes.min(transfer.bytes - done))));
        }
        queues.iter_mut().for_each(|queue| queue.chunks.reverse());
        Ok((queues, results))
    }

    /// Sends or receives the chunk with this number.
    fn chunk(
        &mut self,
        ranks: &TeamOf,
        layout: &Layout,
        queue: &Queue,
        count: u64,
        at: u64,
        bytes: usize,
    ) -> Result<Source, Error> {
        let (state, me, peer) = (self.state, ranks.me, queue.peer);
        let pe = ranks.members[peer];
        let signal = |at, value| Signal { pe, at, value, op: SignalOp::Set };
        if queue.send {
            self.wait_for(layout.taken(peer), count - 1)?;
            let slot = state.remote(self.call, pe, layout.slot(me))?;
            self.copy(slot, at, bytes)?;
            self.signal(&signal(layout.sent(me), count))
        } else {
            self.wait_for(layout.sent(peer), count)?;
            let slot = state.address(Place::Symmetric(layout.slot(peer)));
            self.copy(at, slot, bytes)?;
            self.signal(&signal(layout.taken(me), count))
        }
    }

    /// Waits until a word of this PE has reached a value.
    fn wait_for(&mut self, at: SymOffset, value: u64) -> Result<(), Error> {
        let (compare, until, mode) = (Compare::Ge, Until::All, WaitMode::Wait);
        let waited = self.wait(&WaitUntil { at, count: 1, exclude: None, compare, value, until, mode })?;
        self.hold(waited);
        Ok(())
    }

    /// Enqueues an all-to-all-v: a send and a receive for each rank.
    pub(super) fn all_to_all_v(&mut self, team: &TeamOf, op: &Collective) -> Result<Source, Error> {
        let (Some(send), Some(recv), Some(counts)) = (op.send, op.recv, &op.counts) else {
            panic!("peerweave-core bug: an all-to-all-v has no buffers or no counts");
        };
        let size = op.dtype.size_bytes();
        let ends = |offsets: &[usize], counts: &[usize]| offsets.iter().zip(counts).map(|(offset, count)| offset + count).max();
        let send = if send == recv {
            // In place, an arriving part would overwrite a part that was not sent yet.
            let bytes = ends(&counts.send_offsets, &counts.send_counts).unwrap_or(0) * size;
            let (from, scratch) = (self.reading(send, bytes)?, self.scratch(bytes)?);
            self.copy(scratch, from, bytes)?;
            Place::Device { address: scratch, ordinal: self.state.context.ordinal() as u32 }
        } else {
            send
        };
        let part = |direction, at: Place, offset: usize, count: usize, peer| Transfer {
            direction,
            team: team.id,
            peer: Rank::new(peer),
            at: at.plus(offset * size),
            bytes: count * size,
        };
        let sends = (0..).zip(counts.send_offsets.iter().zip(&counts.send_counts));
        let recvs = (0..).zip(counts.recv_offsets.iter().zip(&counts.recv_counts));
        let sends = sends.map(|(peer, (offset, count))| part(Direction::Send, send, *offset, *count, peer));
        let recvs = recvs.map(|(peer, (offset, count))| part(Direction::Receive, recv, *offset, *count, peer));
        let transfers: Vec<Transfer> = sends.chain(recvs).collect();
        self.transfers(&transfers)
    }
}

/// Offsets of a team's mailboxes in the heap of each rank.
struct Layout {
    words: Range<u64>,
    end: u64,
    n: u64,
    slot_bytes: usize,
}

impl Layout {
    fn new(state: &State, ranks: &TeamOf) -> Self {
        let (n, end) = (ranks.members.len(), state.mailboxes(ranks.id).end);
        let words = words(state, ranks.id, n);
        let slot_bytes = (((end - words.end) / n as u64) & !255) as usize;
        Self { words, end, n: n as u64, slot_bytes }
    }

    /// Returns the word with the number of chunks that a rank has sent.
    fn sent(&self, rank: usize) -> SymOffset {
        SymOffset(self.words.start + 8 * rank as u64)
    }

    /// Returns the word with the number of chunks that a rank has taken.
    fn taken(&self, rank: usize) -> SymOffset {
        SymOffset(self.words.start + 8 * (self.n + rank as u64))
    }

    /// Returns the slot of a rank.
    fn slot(&self, rank: usize) -> SymOffset {
        SymOffset(self.words.end + (rank * self.slot_bytes) as u64)
    }
}
