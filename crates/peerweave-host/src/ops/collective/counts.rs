//! The counts of collectives with parts of different lengths. Each rank publishes its counts and
//! reads those of all ranks, so that every rank detects a disagreement.

use super::Run;
use super::agreement::mismatch;
use crate::memory::layout::STAGE_BYTES;
use crate::sync::wait::Stop;
use peerweave_core::Mismatch;
use peerweave_types::Pe;
use std::sync::atomic::{AtomicU64, Ordering};

const COLUMNS: usize = 4;

/// The number of elements that every rank sends to every rank, and their offsets in the buffers.
#[derive(Debug)]
pub(super) struct Counts {
    n: usize,
    /// `[rank][peer][send count, send offset, recv count, recv offset]`
    table: Vec<u64>,
}

impl Counts {
    fn get(&self, rank: usize, peer: usize, column: usize) -> usize {
        self.table[(rank * self.n + peer) * COLUMNS + column] as usize
    }

    /// Returns the number of elements that `from` sends to `to`.
    pub(super) fn sent(&self, from: usize, to: usize) -> usize {
        self.get(from, to, 0)
    }

    /// Returns the offset of these elements in the send buffer of `from`.
    pub(super) fn send_offset(&self, from: usize, to: usize) -> usize {
        self.get(from, to, 1)
    }

    fn received(&self, at: usize, from: usize) -> usize {
        self.get(at, from, 2)
    }

    /// Returns the offset of the elements from `from` in the receive buffer of `at`.
    pub(super) fn recv_offset(&self, at: usize, from: usize) -> usize {
        self.get(at, from, 3)
    }

    /// Returns the largest number of elements that any rank sends to any rank.
    pub(super) fn longest(&self) -> usize {
        (0..self.n * self.n).map(|i| self.table[i * COLUMNS] as usize).max().unwrap_or(0)
    }

    /// Returns the number of elements that all ranks send.
    pub(super) fn total(&self) -> usize {
        (0..self.n * self.n).map(|i| self.table[i * COLUMNS] as usize).sum()
    }
}

impl Run<'_> {
    fn count_word(&self, rank: usize, index: usize) -> &AtomicU64 {
        assert!(self.n * COLUMNS * 8 <= STAGE_BYTES, "the counts of {} ranks do not fit a staging area", self.n);
        let at = self.step.stage(rank, self.step.parity()).cast::<AtomicU64>().wrapping_add(index);
        // SAFETY: inside the staging area (asserted) and aligned; from when this operation is
        // entered until phase 1, only its ranks access the area, atomically.
        unsafe { &*at }
    }

    /// Writes the counts of this rank to its staging area, before it enters.
    pub(super) fn publish_counts(&self) {
        let counts = self.op.counts.as_ref().expect("peerweave-core bug: a collective without counts");
        for rank in 0..self.n {
            let row = [counts.send_counts[rank], counts.send_offsets[rank], counts.recv_counts[rank], counts.recv_offsets[rank]];
            for (column, value) in row.into_iter().enumerate() {
                self.count_word(self.me, rank * COLUMNS + column).store(value as u64, Ordering::Relaxed);
            }
        }
    }

    /// Reads the counts of all ranks, after all have entered. Ends with phase 1: the staging areas
    /// are then free.
    pub(super) fn read_counts(&self) -> Result<Counts, Stop> {
        let mut table = Vec::with_capacity(self.n * self.n * COLUMNS);
        for rank in 0..self.n {
            table.extend((0..self.n * COLUMNS).map(|i| self.count_word(rank, i).load(Ordering::Relaxed)));
        }
        let counts = Counts { n: self.n, table };
        for from in 0..self.n {
            for to in 0..self.n {
                let (sent, received) = (counts.sent(from, to), counts.received(to, from));
                if sent != received {
                    let call = self.op.kind.name();
                    let receives = format!("{call} in which rank {to} receives {received} elements from rank {from}");
                    let sends = format!("{call} in which rank {from} sends {sent} elements to rank {to}");
                    let (other, mine, theirs) = if from == self.me { (to, sends, receives) } else { (from, receives, sends) };
                    let pe = Pe::new(self.step.team.members[other] as u32);
                    return Err(mismatch(Mismatch { team: self.step.team.name(), pe, mine, theirs }));
                }
            }
        }
        self.step.sync(1)?;
        Ok(counts)
    }
}
