//! Collectives on private buffers. Each rank reads the private buffers of other processes through
//! the operating system. Compared with staging areas, this saves one copy.
//!
//! Peers only *read* private memory. No rank writes to another process. A rank that failed may have
//! freed its buffer. A late read then fails or returns bytes that are discarded, but a late write
//! would corrupt memory. So an all-reduce takes two steps. First, each rank computes its share of
//! the result in its own memory. Then all ranks synchronize, and each rank reads the shares of the
//! other ranks.

use super::direct::share;
use super::{InPlace, NO_BUFFER, PRIVATE, PerRank, Run};
use crate::memory::layout::STAGE_BYTES;
use crate::memory::line::Entry;
use crate::ops::tuning::{self, CROSS_MEMORY_BLOCK};
use crate::platform::cross_memory;
use crate::simd::{self, Input, Stores};
use crate::sync::wait::Stop;
use peerweave_core::PeerCause;
use peerweave_core::backend::{Collective, CollectiveKind as Kind};
use peerweave_types::SymOffset;
use std::ops::Range;

/// Returns whether the ranks of a collective read each other's private buffers. `n` is the number
/// of ranks.
///
/// - Gather, scatter and all-to-all: yes. An all-to-all in place is an exception, because a rank
///   would have to write to the memory of its peers.
/// - All-reduce, reduce-scatter, broadcast and all-gather: only in small teams. In larger teams,
///   staging areas are faster, because they stay in a cache.
/// - Other collectives: no. In a reduce, for example, only the root would do work.
pub(super) fn serves(op: &Collective, in_place: InPlace, n: usize) -> bool {
    match op.kind {
        Kind::AllReduce | Kind::AllReduceRmsNorm | Kind::ReduceScatter | Kind::Broadcast | Kind::AllGather => {
            n <= tuning::CROSS_MEMORY_RANKS
        }
        Kind::Gather | Kind::Scatter => true,
        Kind::AllToAll => in_place == InPlace::None,
        _ => false,
    }
}

impl Run<'_> {
    pub(super) fn cross_memory(&self, entries: &[Entry]) -> Result<(), Stop> {
        let size = self.element_bytes();
        let bytes = self.op.count * size;
        let root = self.op.root.index();
        let others = (1..self.n).map(|distance| (self.me + distance) % self.n);
        let recv = || self.address(self.op.recv);
        match self.op.kind {
            Kind::AllReduce | Kind::AllReduceRmsNorm => {
                let mine = share(self.op.count, self.n, self.me, size);
                self.reduce_fetched(entries, mine.clone(), recv().wrapping_add(mine.start * size))?;
                self.step.sync(1)?;
                for rank in others {
                    let theirs = share(self.op.count, self.n, rank, size);
                    let at = theirs.start * size;
                    self.fetch(rank, entries[rank].payload[1], at, recv().wrapping_add(at), theirs.len() * size)?;
                }
                return self.step.sync(2);
            }
            Kind::ReduceScatter => {
                let mine = self.op.count * self.me..self.op.count * (self.me + 1);
                self.reduce_fetched(entries, mine, recv())?;
            }
            Kind::Broadcast if self.me != root || self.op.send != self.op.recv => {
                self.fetch(root, entries[root].payload[0], 0, recv(), bytes)?;
            }
            Kind::Scatter => self.fetch(root, entries[root].payload[0], bytes * self.me, recv(), bytes)?,
            Kind::AllGather => {
                for rank in others.chain([self.me]) {
                    self.fetch(rank, entries[rank].payload[0], 0, recv().wrapping_add(bytes * rank), bytes)?;
                }
            }
            Kind::Gather if self.me == root => {
                for (rank, entry) in entries.iter().enumerate() {
                    self.fetch(rank, entry.payload[0], 0, recv().wrapping_add(bytes * rank), bytes)?;
                }
            }
            Kind::AllToAll => {
                for rank in others.chain([self.me]) {
                    self.fetch(rank, entries[rank].payload[0], bytes * self.me, recv().wrapping_add(bytes * rank), bytes)?;
                }
            }
            _ => {}
        }
        self.step.sync(1)
    }

    /// Reduces the operands of all ranks, but only their elements with the indices in `range`.
    /// Stores the result at `to`. Before the reduction, the function copies the operands from the
    /// memory of other processes to the staging areas of this rank.
    fn reduce_fetched(&self, entries: &[Entry], range: Range<usize>, to: *mut u8) -> Result<(), Stop> {
        let size = self.element_bytes();
        // The two staging areas of this rank are contiguous, and no other rank uses them in this
        // operation.
        let scratch = self.step.stage(self.me, 0);
        let block_len = (2 * STAGE_BYTES / self.n).min(CROSS_MEMORY_BLOCK) / 64 * 64 / size;
        for start in range.clone().step_by(block_len) {
            let len = block_len.min(range.end - start);
            let mut inputs: PerRank<Input> = PerRank::new();
            for (rank, entry) in entries.iter().enumerate() {
                let at = match self.mapped(rank, entry.payload[0]) {
                    Some(from) => from.wrapping_add(start * size).cast_const(),
                    None => {
                        let into = scratch.wrapping_add(rank * block_len * size);
                        self.fetch(rank, entry.payload[0], start * size, into, len * size)?;
                        into.cast_const()
                    }
                };
                inputs.push(Input { at, scalar: entry.payload[2] });
            }
            self.reduce(&inputs, &[to.wrapping_add((start - range.start) * size)], len, Stores::Cached);
        }
        Ok(())
    }

    /// Returns the address of a buffer of `rank` in this process. Returns `None` if the buffer is
    /// not mapped in this process.
    fn mapped(&self, rank: usize, code: u64) -> Option<*mut u8> {
        if code & PRIVATE == 0 {
            Some(self.step.peers.segments.symmetric(self.step.team.members[rank], SymOffset(code)))
        } else if rank == self.me {
            Some((code & !PRIVATE) as *mut u8)
        } else {
            None
        }
    }

    /// Copies `bytes` bytes, from the byte `offset` of a buffer of `rank`, to `to`. `code`
    /// identifies the buffer (see [`Run::code`]).
    fn fetch(&self, rank: usize, code: u64, offset: usize, to: *mut u8, bytes: usize) -> Result<(), Stop> {
        assert_ne!(code, NO_BUFFER, "peerweave-core bug: the collective has no operand");
        if let Some(from) = self.mapped(rank, code) {
            let from = from.wrapping_add(offset);
            if !std::ptr::eq(from, to) {
                // SAFETY: every rank has checked its sizes against the same count, because the
                // calls were compared. The ranges do not overlap.
                unsafe { simd::copy(to, from, bytes) };
            }
            return Ok(());
        }
        let pid = self.step.peers.segments.page(self.step.team.members[rank]).pid.load(std::sync::atomic::Ordering::Relaxed);
        // SAFETY: `to` is the buffer of this rank, or a block of its staging areas, with at least
        // `bytes` bytes.
        unsafe { cross_memory::read(pid, (code & !PRIVATE) + offset as u64, to, bytes) }
            .map_err(|_| self.step.peer_error(rank, PeerCause::Unreachable).into())
    }
}
