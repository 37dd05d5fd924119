//! The element counts of collectives with parts of different lengths, such as all-to-all-v. Ranks
//! exchange all counts only if the counts of two ranks disagree, or if a part is too long for its
//! slot. A slot is the space for one part in an entry line or a staging area (see `vector.rs`).
//!
//! Each rank publishes its counts in its staging area, which is a buffer in shared memory.

use super::Run;
use super::agreement::mismatch;
use crate::memory::layout::STAGE_BYTES;
use crate::sync::wait::Stop;
use peerweave_core::Mismatch;
use peerweave_core::backend::VectorCounts;
use peerweave_types::Pe;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};

const COLUMNS: usize = 4;

/// Maximum number of words that a table of counts stores without a heap allocation. A table for 8
/// ranks has this size.
const WORDS: usize = 8 * 8 * COLUMNS;

/// Number of words that precede the counts of a rank in its staging area. These words are the codes
/// of the rank's send buffer and receive buffer, as described at [`Run::code`].
const CODES: usize = 2;

/// The counts of all ranks: how many elements each rank sends to each other rank, and the offsets
/// of these elements in the buffers.
#[derive(Debug)]
pub(super) struct Counts {
    n: usize,
    /// A table with the dimensions rank, peer, and column. The columns are: send count, send
    /// offset, receive count, and receive offset.
    table: SmallVec<[u64; WORDS]>,
}

impl Counts {
    fn get(&self, rank: usize, peer: usize, column: usize) -> usize {
        self.table[(rank * self.n + peer) * COLUMNS + column] as usize
    }

    /// Returns the number of elements that `from` sends to `to`.
    pub(super) fn sent(&self, from: usize, to: usize) -> usize {
        self.get(from, to, 0)
    }

    /// Returns an offset in the send buffer of rank `from`, in elements. The elements for rank `to`
    /// start at this offset.
    pub(super) fn send_offset(&self, from: usize, to: usize) -> usize {
        self.get(from, to, 1)
    }

    fn received(&self, at: usize, from: usize) -> usize {
        self.get(at, from, 2)
    }

    /// Returns an offset in the receive buffer of rank `at`, in elements. The elements from rank
    /// `from` start at this offset.
    pub(super) fn recv_offset(&self, at: usize, from: usize) -> usize {
        self.get(at, from, 3)
    }

    /// Returns the largest number of elements that any rank sends to any rank.
    pub(super) fn longest(&self) -> usize {
        (0..self.n * self.n).map(|i| self.table[i * COLUMNS] as usize).max().unwrap_or(0)
    }

    /// Returns the total number of elements that all ranks send.
    pub(super) fn total(&self) -> usize {
        (0..self.n * self.n).map(|i| self.table[i * COLUMNS] as usize).sum()
    }
}

/// Returns the balance of rank `me`, a checksum of its counts. Each count has a digest. The balance
/// is the sum of the digests of all sent counts, minus the sum of the digests of all received
/// counts. If the counts of all pairs of ranks agree, the balances of all ranks add up to 0 modulo
/// 2^64.
#[inline]
pub(super) fn balance(me: usize, counts: &VectorCounts) -> u64 {
    let pairs = std::iter::zip(&counts.send_counts, &counts.recv_counts).enumerate();
    // The core has already compared the counts that a rank sends to itself and receives from
    // itself.
    pairs.filter(|&(rank, _)| rank != me).fold(0u64, |sum, (rank, (&sent, &received))| {
        sum.wrapping_add(digest(me, rank, sent)).wrapping_sub(digest(rank, me, received))
    })
}

/// Returns a digest of the number of elements that rank `from` sends to rank `to`. For the same two
/// ranks, different counts have different digests.
#[inline]
fn digest(from: usize, to: usize, count: usize) -> u64 {
    let pair = ((from as u64) << 32 | to as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = (count as u64 ^ pair).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (word ^ word >> 32).wrapping_mul(0xff51_afd7_ed55_8ccd)
}

impl Run<'_> {
    /// Returns the size of one rank's counts in its staging area, in bytes. The size is rounded up
    /// to whole cache lines.
    #[inline]
    pub(super) fn counts_bytes(&self) -> usize {
        ((CODES + self.n * COLUMNS) * size_of::<u64>()).next_multiple_of(64)
    }

    fn count_word(&self, rank: usize, index: usize) -> &AtomicU64 {
        assert!(
            self.counts_bytes() <= STAGE_BYTES,
            "the counts of {} ranks have {} bytes, expected at most {STAGE_BYTES} (the size of a staging area)",
            self.n,
            self.counts_bytes()
        );
        let at = self.step.stage(rank, self.step.parity()).cast::<AtomicU64>().wrapping_add(index);
        // SAFETY: the word is inside the staging area (asserted) and aligned. While this operation
        // runs and until its ranks have read the counts, all ranks access these words only
        // atomically.
        unsafe { &*at }
    }

    /// Writes the codes of this rank's two buffers, and then its counts, to its staging area. A
    /// code is the offset or the address of a buffer, as described at [`Run::code`].
    pub(super) fn publish_counts(&self, counts: &VectorCounts) {
        for (index, code) in [self.code(self.op.send), self.code(self.op.recv)].into_iter().enumerate() {
            self.count_word(self.me, index).store(code, Ordering::Relaxed);
        }
        let sends = std::iter::zip(&counts.send_counts, &counts.send_offsets);
        let receives = std::iter::zip(&counts.recv_counts, &counts.recv_offsets);
        for (rank, (send, receive)) in std::iter::zip(sends, receives).enumerate() {
            for (column, value) in [*send.0, *send.1, *receive.0, *receive.1].into_iter().enumerate() {
                self.count_word(self.me, CODES + rank * COLUMNS + column).store(value as u64, Ordering::Relaxed);
            }
        }
    }

    /// Returns the codes of the send buffer and the receive buffer of `rank`. A code is the offset
    /// or the address of a buffer, as described at [`Run::code`]. Before this call, `rank` must
    /// have called [`publish_counts`](Self::publish_counts).
    pub(super) fn codes(&self, rank: usize) -> [u64; CODES] {
        std::array::from_fn(|index| self.count_word(rank, index).load(Ordering::Relaxed))
    }

    /// Reads the counts of all ranks and compares them. All ranks must have published their counts
    /// before this call.
    pub(super) fn read_counts(&self) -> Result<Counts, Stop> {
        let mut table = SmallVec::with_capacity(self.n * self.n * COLUMNS);
        for rank in 0..self.n {
            table.extend((0..self.n * COLUMNS).map(|i| self.count_word(rank, CODES + i).load(Ordering::Relaxed)));
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
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sum of the [`balance`]s of all ranks. The sum is 0 if the counts of all ranks
    /// agree. `sent[r][p]` is the number of elements that rank `r` sends to rank `p`.
    /// `received[r][p]` is the number of elements that rank `r` receives from rank `p`.
    fn sum(sent: &[Vec<usize>], received: &[Vec<usize>]) -> u64 {
        let balance = |(rank, (sent, received)): (usize, (&Vec<usize>, &Vec<usize>))| {
            balance(rank, &VectorCounts::packed(sent.clone(), received.clone()))
        };
        std::iter::zip(sent, received).enumerate().map(balance).fold(0, u64::wrapping_add)
    }

    #[test]
    fn disagreeing_send_and_receive_counts_are_detected() {
        let mut word = 1u64;
        let mut random = |below: usize| {
            word = digest(1, 2, word as usize);
            (word >> 40) as usize % below
        };
        for n in [1, 2, 3, 8] {
            for round in 0..200 {
                let below = if round % 2 == 0 { 2 } else { 1 << 20 };
                let sent: Vec<Vec<usize>> = (0..n).map(|_| (0..n).map(|_| random(below)).collect()).collect();
                let received: Vec<Vec<usize>> = (0..n).map(|to| (0..n).map(|from| sent[from][to]).collect()).collect();
                assert_eq!(sum(&sent, &received), 0);
                if n == 1 {
                    continue;
                }
                let (at, from) = (random(n), random(n));
                if at != from {
                    let mut other = received.clone();
                    other[at][from] += 1 + random(3);
                    assert_ne!(sum(&sent, &other), 0, "the sum is 0, although rank {at} expects another count from rank {from}");
                }
            }
        }
        // Each rank sends a count that the other rank does not expect, but the total counts agree.
        assert_ne!(sum(&[vec![0, 1], vec![2, 0]], &[vec![0, 1], vec![2, 0]]), 0);
    }
}
