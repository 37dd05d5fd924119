//! Collectives with parts of different lengths: all-to-all-v, all-gather-v, gather-v and scatter-v.
//! A rank need not know the counts of all pairs of ranks.
//!
//! Each rank announces its call by an entry, which it writes to one of its cache lines, the entry
//! line. From its own counts, the rank chooses where it stores its parts for the other ranks: in
//! slots of its entry line, in slots of its staging area, or not in slots. The entry contains this
//! choice. A rank has one slot for each receiver, and all of these slots have the same length. If
//! all ranks use slots, each rank reads its parts from the slots, and the entries are the only
//! synchronization. If at least one rank does not use slots, all ranks exchange their counts, and
//! continue as in other collectives with large operands.
//!
//! Each entry also contains the balance of the rank's counts, as described at [`balance`]. All
//! ranks add up the balances, so all ranks detect a disagreement. After a disagreement, the ranks
//! exchange the counts only to describe the disagreement.

use super::Run;
use super::counts::balance;
use super::staged::copy_part;
use crate::memory::line::{Entry, PAYLOAD_BYTES};
use crate::ops::tuning;
use crate::simd;
use crate::sync::wait::Stop;
use peerweave_core::backend::{CollectiveKind, VectorCounts};

/// The memory in which a rank passes its parts to the other ranks. Each rank chooses this memory
/// for itself. The rank publishes the choice in the lowest bits of `payload[2]`, the last word of
/// its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum Slots {
    InLine = 0,
    Staged = 1,
    /// The rank copies no parts to slots, because its parts are too long. Instead it publishes the
    /// element counts of its parts in its staging area.
    None = 2,
}

/// Mask for the lowest bits in the last word of an entry. These bits contain a [`Slots`] value. The
/// other bits contain the balance of the rank's counts, modulo 2^62. The balance is a checksum, as
/// described at [`balance`].
const SLOTS: u64 = 3;
const SLOTS_BITS: u32 = 2;

/// Number of bytes in an entry's payload that are available for slots. This is the whole payload
/// except the last word, which contains the [`Slots`] value and the [`balance`] of the rank's
/// counts.
const LINE_BYTES: usize = PAYLOAD_BYTES - size_of::<u64>();

impl Slots {
    #[inline]
    fn of(entry: &Entry) -> Self {
        match entry.payload[2] & SLOTS {
            0 => Self::InLine,
            1 => Self::Staged,
            _ => Self::None,
        }
    }

    /// Returns the length of a slot, in bytes, in a team of `n` ranks. The computation uses a
    /// shift, because a division would be slow.
    #[inline]
    fn bytes(self, n: usize) -> usize {
        let shift = usize::BITS - (n - 1).leading_zeros();
        match self {
            Self::InLine => LINE_BYTES >> shift,
            Self::Staged => tuning::staged_limit(n) >> shift,
            Self::None => 0,
        }
    }
}

impl Run<'_> {
    #[inline]
    fn vector_counts(&self) -> &VectorCounts {
        self.op.counts.as_ref().expect("peerweave-core bug: the collective has no counts")
    }

    /// Creates the entry of this rank. The caller then publishes the entry. If the parts that this
    /// rank sends fit in slots (see [`Slots`]), this function copies the parts to the slots.
    /// Otherwise, it writes the counts of this rank to its staging area.
    #[inline]
    pub(super) fn vector_entry(&self, signature: u64) -> Entry {
        let (counts, size) = (self.vector_counts(), self.element_bytes());
        let longest = counts.send_counts.iter().copied().max().unwrap_or(0) * size;
        let fits = |slots: &Slots| longest <= slots.bytes(self.n);
        let slots = [Slots::InLine, Slots::Staged].into_iter().find(fits).unwrap_or(Slots::None);
        let mut entry = Entry { signature, payload: [0, 0, balance(self.me, counts) << SLOTS_BITS | slots as u64] };
        let to: *mut u8 = match slots {
            Slots::InLine => entry.payload.as_mut_ptr().cast(),
            Slots::Staged => self.slots_of(self.me),
            Slots::None => {
                self.publish_counts(counts);
                return entry;
            }
        };
        let (slot, Some(send)) = (slots.bytes(self.n), self.op.send) else { return entry };
        let send = self.shared.address(send).cast_const();
        for (rank, (&count, &offset)) in std::iter::zip(&counts.send_counts, &counts.send_offsets).enumerate() {
            if count > 0 && (rank != self.me || self.overwrites_operand()) {
                let from = send.wrapping_add(offset * size);
                // SAFETY: the part is in the buffer (checked by the core) and fits in its slot. The
                // `n` slots fit in the first words of the payload, or follow the counts in a
                // staging area of this rank. Neither overlaps a buffer.
                unsafe { simd::copy(to.wrapping_add(rank * slot), from, count * size) };
            }
        }
        entry
    }

    /// Returns the address of the first slot in the staging area of `rank`. The slots follow the
    /// counts.
    #[inline]
    fn slots_of(&self, rank: usize) -> *mut u8 {
        self.step.stage(rank, self.step.parity()).wrapping_add(self.counts_bytes())
    }

    /// Completes the collective after all ranks have published their entries. Copies the parts for
    /// this rank from the slots of the sending ranks (places in shared memory, one for each
    /// receiver). If a part does not fit in its slot, or if the counts disagree, calls
    /// [`Self::vector_without_slots`].
    #[inline]
    pub(super) fn vector(&self, entries: &mut [Entry]) -> Result<(), Stop> {
        let (mut balance, mut slots) = (0u64, 0);
        for entry in entries.iter() {
            balance = balance.wrapping_add(entry.payload[2] & !SLOTS);
            slots |= entry.payload[2] & SLOTS;
        }
        if balance != 0 || slots & Slots::None as u64 != 0 {
            return self.vector_without_slots(entries);
        }
        let (counts, size) = (self.vector_counts(), self.element_bytes());
        self.own_next_slots(Slots::of(&entries[self.me]), counts);
        let Some(recv) = self.op.recv else { return Ok(()) };
        let recv = self.shared.address(recv);
        for (rank, (&count, &offset)) in std::iter::zip(&counts.recv_counts, &counts.recv_offsets).enumerate() {
            if count == 0 {
                continue;
            }
            let slots = Slots::of(&entries[rank]);
            let first = match slots {
                Slots::InLine => entries[rank].payload.as_ptr().cast(),
                _ => self.slots_of(rank).cast_const(),
            };
            let slot = slots.bytes(self.n);
            let to = recv.wrapping_add(offset * size);
            let from = match self.op.send {
                Some(send) if rank == self.me && !self.overwrites_operand() => {
                    self.shared.address(send).cast_const().wrapping_add(counts.send_offsets[rank] * size)
                }
                _ => first.wrapping_add(self.me * slot),
            };
            // SAFETY: the part is in the buffer (checked by the core). `rank` has packed the same
            // number of elements, because the balance of all counts is 0. This rank sends itself as
            // many elements as it receives (checked by the core). The bound is correct even if
            // `rank` has packed fewer elements. A part that was not packed is at its place in
            // `recv`, or does not overlap it.
            unsafe { copy_part(to, from, (count * size).min(slot)) };
        }
        Ok(())
    }

    /// Returns whether the collective is an all-to-all-v in place. In this case, results may
    /// overwrite parts of the operand that this rank has not read yet. So this rank must also pack
    /// the part that it sends to itself. In other cases, it need not pack this part.
    #[inline]
    pub(super) fn overwrites_operand(&self) -> bool {
        self.op.kind == CollectiveKind::AllToAllV && self.op.send == self.op.recv
    }

    /// Prepares the cache of this processor for the next operation: requests the cache lines of the
    /// slots that this rank will write in that operation. This helps only if the next operation has
    /// the same counts. See [`Step::own_next_stage`](crate::sync::step::Step::own_next_stage).
    #[inline]
    fn own_next_slots(&self, slots: Slots, counts: &VectorCounts) {
        if slots != Slots::Staged {
            return;
        }
        let (first, slot, size) = (self.counts_bytes(), slots.bytes(self.n), self.element_bytes());
        for (rank, &count) in counts.send_counts.iter().enumerate().filter(|&(rank, _)| rank != self.me) {
            self.step.own_next_stage(first + rank * slot, count * size);
        }
    }

    /// Completes the collective after at least one rank could not store its parts in slots (see
    /// [`Slots`]), or after a disagreement between the counts of two ranks. All ranks exchange
    /// their counts. If the counts disagree, returns an error that describes the disagreement.
    #[cold]
    fn vector_without_slots(&self, entries: &mut [Entry]) -> Result<(), Stop> {
        // Calls are compared in full, because ranks access buffers that other ranks name.
        self.compare_calls()?;
        let mut phase = 0;
        if entries.iter().any(|entry| Slots::of(entry) != Slots::None) {
            // Ranks that used slots have not published their counts.
            if Slots::of(&entries[self.me]) != Slots::None {
                self.publish_counts(self.vector_counts());
            }
            phase += 1;
            self.step.sync(phase)?;
        }
        let counts = self.read_counts()?;
        for (rank, entry) in entries.iter_mut().enumerate() {
            let [send, recv] = self.codes(rank);
            entry.payload = [send, recv, self.op.scalar];
        }
        // After this synchronization every rank has read the counts, so the staging areas are free.
        phase += 1;
        self.step.sync(phase)?;
        self.large(entries, Some(&counts), phase)
    }
}
