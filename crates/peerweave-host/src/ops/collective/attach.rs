//! Collectives on private buffers, which the kernel reads out of the other processes: one copy less than through staging areas.
//!
//! Peers only ever *read* private memory. Nobody writes into another process: a rank that gave up may have freed its buffer, and a
//! late read of it is an error or rubbish that is thrown away, where a late write would be corruption. So results travel in two steps: each rank
//! makes its share in its own memory, all synchronise, and the others fetch it from there.

use super::direct::share;
use super::{InPlace, NO_BUFFER, PRIVATE, PerRank, Run};
use crate::memory::attach;
use crate::memory::layout::STAGE_BYTES;
use crate::memory::line::Entry;
use crate::ops::tuning::{self, ATTACH_BLOCK};
use crate::simd::{self, Input, Stores};
use crate::sync::step::Failure;
use peerweave_core::PeerCause;
use peerweave_core::backend::{Collective, CollectiveKind as Kind};
use peerweave_types::SymOffset;
use std::ops::Range;

/// Whether this way serves a collective, for `n` ranks. An all-to-all in place would have to write into peers; a reduce would be done by the root
/// alone. In larger teams the staging areas, which are read out of a cache, beat the kernel where everybody reads the same bytes.
pub(super) fn serves(op: &Collective, in_place: InPlace, n: usize) -> bool {
    match op.kind {
        Kind::AllReduce | Kind::ReduceScatter | Kind::Broadcast | Kind::AllGather => n <= tuning::ATTACH_RANKS,
        Kind::Gather | Kind::Scatter => true,
        Kind::AllToAll => in_place == InPlace::Nobody,
        _ => false,
    }
}

impl Run<'_> {
    pub(super) fn attach(&self, entries: &[Entry]) -> Result<(), Failure> {
        let size = self.element_bytes();
        let bytes = self.op.count * size;
        let root = self.op.root.index();
        let others = (1..self.n).map(|distance| (self.me + distance) % self.n);
        let recv = || self.address(self.op.recv);
        match self.op.kind {
            Kind::AllReduce => {
                let mine = share(self.op.count, self.n, self.me, size);
                self.attach_reduce(entries, mine.clone(), recv().wrapping_add(mine.start * size))?;
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
                self.attach_reduce(entries, mine, recv())?;
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

    /// Reduces elements `range` of all ranks' operands into `to` of this rank.
    fn attach_reduce(&self, entries: &[Entry], range: Range<usize>, to: *mut u8) -> Result<(), Failure> {
        let size = self.element_bytes();
        // What is fetched goes to this rank's staging areas, which lie together and are nobody else's business in this operation.
        let scratch = self.step.stage(self.me, 0);
        let block_len = (2 * STAGE_BYTES / self.n).min(ATTACH_BLOCK) / 64 * 64 / size;
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

    /// The address of a buffer that this process can reach by itself.
    fn mapped(&self, rank: usize, code: u64) -> Option<*mut u8> {
        if code & PRIVATE == 0 {
            Some(self.step.shared.segments.symmetric(self.step.team.members[rank], SymOffset(code)))
        } else if rank == self.me {
            Some((code & !PRIVATE) as *mut u8)
        } else {
            None
        }
    }

    /// Copies out of a buffer of `rank`.
    fn fetch(&self, rank: usize, code: u64, offset: usize, to: *mut u8, bytes: usize) -> Result<(), Failure> {
        assert_ne!(code, NO_BUFFER, "peerweave-core bug: a buffer is missing");
        if let Some(from) = self.mapped(rank, code) {
            let from = from.wrapping_add(offset);
            if !std::ptr::eq(from, to) {
                // SAFETY: sizes were checked against the same count on every rank (the calls were compared); ranges are apart.
                unsafe { simd::copy(to, from, bytes) };
            }
            return Ok(());
        }
        let pid = self.step.shared.segments.page(self.step.team.members[rank]).pid.load(std::sync::atomic::Ordering::Relaxed);
        // SAFETY: `to` is this rank's buffer, or a block of its own, of at least `bytes`.
        unsafe { attach::read(pid, (code & !PRIVATE) + offset as u64, to, bytes) }
            .map_err(|_| self.step.peer_error(rank, PeerCause::Unreachable))
    }
}
