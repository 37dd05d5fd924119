//! The layout of the control words in the segment of each PE, and typed access to them.
//! This module contains no protocol. A segment consists of four parts: the [`PePage`] of the PE,
//! the [`TeamCallWords`] of the PE, one block per team slot, and the heap. With the
//! [`TeamCallWords`], the PE takes part in `team_of`, which creates a team from a list of members.
//! All segments are in one range of memory, at equal strides. The range is initially zero and keeps
//! its size.
//!
//! # Invariants
//! - **\[L1\]** Only `segment.rs` creates a `Segments`, for a mapping of `n_pes * stride` bytes.
//!   The mapping stays mapped while the `Segments` or a [`TeamBlock`] of it lives.
//! - **\[L2\]** All memory behind a reference to a type of this module is atomic. All other memory
//!   is accessed through raw pointers.

use crate::memory::line::Line;
use peerweave_bootstrap::survivors::{MAX_SURVIVORS, SurvivorWords};
use peerweave_types::{HeapGeometry, KernelContext, Pe, SymOffset, TeamEntry};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Maximum number of thread blocks that may synchronize in one team at the same time. The limit
/// applies to the kernels of each PE separately.
pub(crate) const KERNEL_SLOTS: u32 = 64;

/// Maximum number of teams that a PE can belong to at the same time, including the team of all PEs.
pub(crate) const MAX_TEAMS: usize = 64;

/// Size of one staging area, in bytes. In each round of an operation on large private buffers, a
/// rank fills at most one staging area.
///
/// The size is large enough that the copy of a round takes longer than the two synchronizations of
/// the round. The size is small enough that the areas of all ranks stay in the shared cache.
pub(crate) const STAGE_BYTES: usize = 256 << 10;

/// Number of entry lines of a rank. An entry line is a cache line in which the rank announces that
/// it has entered an operation (see `line.rs`). Consecutive operations use the lines in turn. The
/// root of a small broadcast does not wait for the other ranks, but it can be at most `ENTRY_LINES
/// - 1` operations ahead of them.
pub(crate) const ENTRY_LINES: usize = 4;
const _: () = assert!(ENTRY_LINES.is_power_of_two());

/// Maximum number of bytes that are copied into one mailbox slot. These bytes are a whole message,
/// or a fragment of a longer message.
pub(crate) const EAGER_BYTES: usize = 8 << 10;

/// Number of slots of a mailbox. A sender can be ahead of the receiver by this number of messages
/// or fragments of messages.
pub(crate) const MAILBOX_SLOTS: usize = 4;

const PAGE: usize = 4096;

/// Offset of the PE's `SurvivorWords` in its page. By these words, PEs agree on a new job after a
/// failure.
const SURVIVORS: usize = 1024;
const _: () = assert!(size_of::<PePage>() <= SURVIVORS && SURVIVORS + size_of::<SurvivorWords>() <= PAGE);
const _: () = assert!(SURVIVORS.is_multiple_of(align_of::<SurvivorWords>()));

/// Maximum number of PEs of a job.
pub(crate) const MAX_PES: usize = MAX_SURVIVORS;

/// Values of [`PePage::state`]. The value is 0 before the PE has joined.
pub(crate) mod state {
    /// The PE participates in the job.
    pub(crate) const ALIVE: u64 = 1;
    /// The PE has finalized, together with all other PEs.
    pub(crate) const FINALIZED: u64 = 2;
    /// The PE has dropped its `World` without finalizing it, or the finalization has failed.
    pub(crate) const LEFT: u64 = 3;
    /// The PE has begun to leave, but has not published [`LEFT`] yet. If its process ends now,
    /// other PEs treat the PE as one that left, not as one that died.
    pub(crate) const LEAVING: u64 = 4;
}

/// Alignment of a segment, in bytes. This is the size of a huge page.
const SEGMENT_ALIGN: usize = 2 << 20;

/// The page of shared memory in which a PE publishes its state, its identity and its failure.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct PePage {
    /// State of the PE: 0 or a constant of [`state`].
    pub(crate) state: AtomicU64,
    /// Process ID of the PE.
    pub(crate) pid: AtomicU64,
    /// Digest of the PID namespace in which `pid` is valid, and of the current boot of the machine.
    /// 0 if the system does not report the namespace.
    pub(crate) pid_namespace: AtomicU64,
    /// Number of the processor on which the PE ran in its last long wait, plus 1. The value is 0
    /// before the first long wait. See `sync/peers.rs`.
    pub(crate) processor: AtomicU64,
    /// 0, or a failure of the PE: the number of the PE that caused it, and the kind of cause. See
    /// `sync/root_cause.rs`.
    pub(crate) failure: AtomicU64,
    /// A random number that the PE's process also stores in its private memory, at the address
    /// `probe_at`. Another PE reads that address by a cross-memory read. If the result equals
    /// `probe`, the PE can read this process, and has found the right one.
    pub(crate) probe: AtomicU64,
    pub(crate) probe_at: AtomicU64,
    /// The PE that aborted the job, and the exit code, encoded by `AbortWord`. 0 if the job was not
    /// aborted. Used only in the page of PE 0. See `sync/abort.rs`.
    pub(crate) abort: AtomicU64,
}

/// The words by which a PE publishes its call of `team_of`: see `ops/team_of.rs`. In memory, two
/// lists of PEs follow these words: the members of the new team, and the different list of another
/// PE. Each list has room for all PEs of the job.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct TeamCallWords {
    /// The state of the PE's latest `team_of` call in one word: the number of the call, its phase,
    /// and a PE. If the call has failed, the PE is the one that the error names.
    pub(crate) state: AtomicU64,
    /// The decision of the leader: the slot of the new team, and an epoch. The epoch is the highest
    /// that any member has used in this slot. Only the leader writes this word.
    pub(crate) decision: AtomicU64,
    /// Number of members that this PE lists for the new team.
    pub(crate) size: AtomicU64,
    /// Length of a different list of members, which another PE passed to `team_of`. The PE that
    /// ends this PE's call because of the difference writes the list and its length, so that this
    /// PE's error can show the list.
    pub(crate) other_size: AtomicU64,
    /// One bit for each team slot, set if the slot is free on this PE.
    pub(crate) free_slots: AtomicU64,
    /// For each team slot, the last epoch that this PE has used in the slot.
    pub(crate) last_epochs: [AtomicU64; MAX_TEAMS],
}

/// A word that shares its two cache lines with no other data.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct LoneWord {
    pub(crate) word: AtomicU64,
}

/// The words of one rank in one team. Only that rank writes these words.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct TeamWords {
    /// The entry lines: cache lines in which this rank publishes that it has entered an operation.
    /// The operation with the number (epoch) `k` in the team uses line `k % ENTRY_LINES`.
    pub(crate) entry: [Line; ENTRY_LINES],
    /// Progress word of this rank: the epoch of its latest operation, the number of completed
    /// phases, and whether the rank has failed. See `sync/step.rs`.
    pub(crate) progress: LoneWord,
    /// The failure word of this rank for the team: see `sync/root_cause.rs`. If the word contains a
    /// failure, this rank runs no more operations of the team.
    pub(crate) failure: LoneWord,
    /// For each entry line, the full parameters of the call. Ranks compare the parameters if the
    /// signatures of two calls differ.
    pub(crate) call: [CallWords; ENTRY_LINES],
}

/// The parameters of a collective call, encoded as words.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct CallWords {
    /// Word 0: kind, element type, reduction and purpose. Word 1: root. Word 2: count. Word 3: a
    /// value whose meaning depends on the purpose. Word 4: digest of the small broadcasts before
    /// the call, as described at `TeamState::history`.
    pub(crate) words: [AtomicU64; 5],
}

/// The words of a mailbox slot, as described at [`peerweave_device::mailbox::Slot`]. The payload
/// describes the message in the slot by its kind of memory, its address and its length. The payload
/// also contains the element type and the element count of the whole transfer.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct MailSlot {
    pub(crate) number: AtomicU64,
    pub(crate) payload: [AtomicU64; 5],
    pub(crate) answer: LoneWord,
}

/// The layout of a job's segments: the number of PEs, and the offsets and sizes of the parts of a
/// segment. All offsets and sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) n_pes: usize,
    pub(crate) heap_bytes: usize,
    /// Offset of the first team block. A segment has one team block for each team to which its PE
    /// can belong. A team block contains the control words, staging areas and mailboxes of one
    /// team.
    team_blocks: usize,
    team_block_bytes: usize,
    /// Offset, in a team block, of the memory by which kernels synchronize. A team block is the
    /// part of a segment that belongs to one team.
    kernel_lines: usize,
    heap_start: usize,
    stride: usize,
}

const MAIL_SLOT_BYTES: usize = size_of::<MailSlot>() + EAGER_BYTES;
const MAILBOX_BYTES: usize = MAIL_SLOT_BYTES * MAILBOX_SLOTS;

impl Layout {
    /// Returns the layout for `n_pes` PEs with `heap_bytes` of heap each. Returns `None` if all
    /// segments together do not fit in the address space.
    pub(crate) fn new(n_pes: usize, heap_bytes: usize) -> Option<Self> {
        let words = size_of::<TeamWords>().next_multiple_of(PAGE);
        let kernel_lines = (words + 2 * STAGE_BYTES).checked_add(n_pes.checked_mul(MAILBOX_BYTES)?)?.next_multiple_of(PAGE);
        let lines_bytes = TeamEntry::sync_bytes(u32::try_from(n_pes).ok()?, KERNEL_SLOTS) as usize;
        let team_block_bytes = kernel_lines.checked_add(lines_bytes)?.next_multiple_of(PAGE);
        let team_call = size_of::<TeamCallWords>().checked_add(n_pes.checked_mul(2 * size_of::<AtomicU32>())?)?;
        let team_blocks = PAGE.checked_add(team_call)?.checked_next_multiple_of(PAGE)?;
        let heap_start =
            team_blocks.checked_add(team_block_bytes.checked_mul(MAX_TEAMS)?)?.checked_next_multiple_of(SEGMENT_ALIGN)?;
        // The stride is an odd multiple of the segment alignment. Processors predict the way of the
        // first-level cache from a hash of the lower 28 bits of an address. With a stride of 1 GiB,
        // the same offset of two segments has the same hash. Alternating accesses to both segments
        // then take twice as long (measured on AMD Zen).
        let stride = heap_start.checked_add(heap_bytes)?.div_ceil(SEGMENT_ALIGN) | 1;
        let stride = stride.checked_mul(SEGMENT_ALIGN)?;
        let total = stride.checked_mul(n_pes)?;
        (total < 1 << 46).then_some(Self { n_pes, heap_bytes, team_blocks, team_block_bytes, kernel_lines, heap_start, stride })
    }

    /// Returns the alignment of every segment, in bytes. This is also the largest alignment of an
    /// allocation.
    pub(crate) fn align(&self) -> usize {
        SEGMENT_ALIGN
    }

    /// Returns the size of the segments of all PEs together, in bytes.
    pub(crate) fn total_bytes(&self) -> usize {
        self.stride * self.n_pes
    }

    /// Returns the size of a segment, in bytes.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.stride as u64
    }

    /// Returns the offset, in a segment, of the memory by which kernels of the team in slot `slot`
    /// synchronize. The offset is the same in every segment.
    pub(crate) fn kernel_lines(&self, slot: usize) -> SymOffset {
        assert!(slot < MAX_TEAMS, "the team slot is {slot}, expected less than {MAX_TEAMS}");
        SymOffset((self.team_blocks + self.team_block_bytes * slot + self.kernel_lines) as u64)
    }

    /// Returns the offset of the heap from the start of its segment, in bytes.
    pub(crate) fn heap_start(&self) -> u64 {
        self.heap_start as u64
    }
}

/// The address of a team block: the control words, staging areas and mailboxes of one member of a
/// team.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TeamBlock(*mut u8);

// SAFETY: the shared data are a part of the data of `Segments`. Words are accessed by atomics [L2],
// and staging areas by `simd`, which tolerates races. Entry lines and progress words synchronize.
// The conformance tests on threads, which compare every element, would catch an error.
unsafe impl Send for TeamBlock {}
// SAFETY: as for Send, because the same memory is shared. `words` returns a reference to atomics
// only, which synchronize themselves. The same tests would catch an error.
unsafe impl Sync for TeamBlock {}

impl TeamBlock {
    /// Returns the words that the member publishes for the team: its entry lines, progress, failure
    /// word and call parameters.
    #[inline]
    pub(crate) fn words(&self) -> &TeamWords {
        // SAFETY: [L1] the words are inside the mapping and aligned to a page. Zeros are a valid
        // `TeamWords`, and [L2] all of it is atomic.
        unsafe { &*self.0.cast::<TeamWords>() }
    }

    /// Returns one of the member's two staging areas. The lowest bit of `parity` selects the area.
    /// Each area has [`STAGE_BYTES`] bytes and is aligned to a page.
    #[inline]
    pub(crate) fn stage(&self, parity: usize) -> *mut u8 {
        let words = const { size_of::<TeamWords>().next_multiple_of(PAGE) };
        self.0.wrapping_add(words + STAGE_BYTES * (parity & 1))
    }
}

/// The addresses of all segments in this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segments {
    base: *mut u8,
    layout: Layout,
}

// SAFETY: the shared data are the words of all segments, accessed by atomics [L2], and bytes,
// accessed by `simd`, which tolerates races. Entry lines, progress words, signals and mailboxes
// synchronize. The owner of a `Segments` also owns the mapping. The conformance tests on threads,
// which compare every element, would catch an error.
unsafe impl Send for Segments {}
// SAFETY: as for Send, because the same memory is shared. Methods return references to atomics
// only, which synchronize themselves. The same tests would catch an error.
unsafe impl Sync for Segments {}

impl Segments {
    /// Returns the addresses of all segments in the mapping that starts at `base`.
    ///
    /// # Safety
    /// [L1]: `base` is the start of a mapping. The mapping has `layout.total_bytes()` bytes and is
    /// aligned to `layout.align()`. The mapping was zero before its first use. The mapping exists
    /// while the returned value, a copy of that value, or a [`TeamBlock`] from one of these values
    /// exists.
    pub(crate) unsafe fn new(base: *mut u8, layout: Layout) -> Self {
        Self { base, layout }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    fn at(&self, pe: usize, offset: usize) -> *mut u8 {
        debug_assert!(pe < self.layout.n_pes && offset < self.layout.stride);
        self.base.wrapping_add(self.layout.stride * pe + offset)
    }

    /// Returns the page with the words that PE `pe` publishes about itself.
    pub(crate) fn page(&self, pe: usize) -> &PePage {
        // SAFETY: [L1] the page is inside the mapping and aligned. Zeros are a valid `PePage`, and
        // [L2] all of it is atomic.
        unsafe { &*self.at(pe, 0).cast::<PePage>() }
    }

    /// Returns the words that PE `pe` publishes after the failure of another PE. By these words,
    /// the surviving PEs agree on a new job.
    pub(crate) fn survivors(&self, pe: usize) -> &SurvivorWords {
        // SAFETY: [L1] the words are inside the page of the PE, behind its `PePage`, and aligned
        // (both asserted above). Zeros are valid `SurvivorWords`, and [L2] all of it is atomic.
        unsafe { &*self.at(pe, SURVIVORS).cast::<SurvivorWords>() }
    }

    /// Returns the words by which PE `pe` publishes its call of `team_of`.
    pub(crate) fn team_call(&self, pe: usize) -> &TeamCallWords {
        // SAFETY: [L1] the words are inside the mapping and aligned to a page. Zeros are a valid
        // `TeamCallWords`, and [L2] all of it is atomic.
        unsafe { &*self.at(pe, PAGE).cast::<TeamCallWords>() }
    }

    /// Returns the list of members in the `team_of` call of a PE. The slice has room for all PEs of
    /// the job.
    pub(crate) fn team_call_members(&self, pe: usize) -> &[AtomicU32] {
        self.team_call_list(pe, 0)
    }

    /// Returns the words for a list of members that another PE passed to `team_of`, and that
    /// differs from the list of PE `pe`. The words are in the segment of `pe`, and have room for
    /// all PEs of the job. [`TeamCallWords::other_size`] is the length of the list.
    pub(crate) fn team_call_others_members(&self, pe: usize) -> &[AtomicU32] {
        self.team_call_list(pe, 1)
    }

    fn team_call_list(&self, pe: usize, index: usize) -> &[AtomicU32] {
        let n_pes = self.layout.n_pes;
        let at = self.at(pe, PAGE + size_of::<TeamCallWords>() + index * n_pes * size_of::<AtomicU32>()).cast::<AtomicU32>();
        // SAFETY: [L1] the `n_pes` words are inside the mapping, before the blocks of teams,
        // because `index` is 0 or 1. They are aligned, because the size of `TeamCallWords` is a
        // multiple of 128. [L2] All of it is atomic.
        unsafe { std::slice::from_raw_parts(at, n_pes) }
    }

    fn team_block(&self, pe: usize, slot: usize) -> *mut u8 {
        assert!(
            slot < MAX_TEAMS && pe < self.layout.n_pes,
            "team slot {slot} of PE {pe} does not exist, expected a slot below {MAX_TEAMS} and a PE below {}",
            self.layout.n_pes
        );
        self.at(pe, self.layout.team_blocks + self.layout.team_block_bytes * slot)
    }

    /// Returns the [`TeamBlock`] of a PE: its words and staging areas for the team in slot `slot`.
    /// A team stores the blocks of its members, so that its operations need not compute the
    /// addresses.
    pub(crate) fn block(&self, pe: usize, slot: usize) -> TeamBlock {
        TeamBlock(self.team_block(pe, slot))
    }

    /// Returns the control words of PE `pe` for the team in slot `slot`.
    pub(crate) fn team_words(&self, pe: usize, slot: usize) -> &TeamWords {
        // SAFETY: [L1] the words are inside the mapping (asserted) and aligned to a page. Zeros are
        // a valid `TeamWords`, and [L2] all of it is atomic.
        unsafe { &*self.team_block(pe, slot).cast::<TeamWords>() }
    }

    /// Returns one message slot of a mailbox. In each team, a PE has one mailbox for each sending
    /// rank. `pe` is the receiving PE, and `from` is the sending rank. `slot` selects the team: it
    /// is the number of the team's block in each segment. `index` selects the message slot in the
    /// mailbox.
    pub(crate) fn mail(&self, pe: usize, slot: usize, from: usize, index: usize) -> &MailSlot {
        // SAFETY: as for `team_words`. The slot is inside the mapping, because `from < n_pes`, and
        // aligned, because all sizes are multiples of 128.
        unsafe { &*self.mail_at(pe, slot, from, index).cast::<MailSlot>() }
    }

    /// Returns the address at which a mailbox slot stores the bytes of its message. There is room
    /// for [`EAGER_BYTES`] bytes. [`Segments::mail`] describes the arguments.
    pub(crate) fn mail_bytes(&self, pe: usize, slot: usize, from: usize, index: usize) -> *mut u8 {
        self.mail_at(pe, slot, from, index).wrapping_add(size_of::<MailSlot>())
    }

    fn mail_at(&self, pe: usize, slot: usize, from: usize, index: usize) -> *mut u8 {
        assert!(
            from < self.layout.n_pes && index < MAILBOX_SLOTS,
            "slot {index} of the mailbox of rank {from} does not exist, expected a slot below {MAILBOX_SLOTS} and a rank below {}",
            self.layout.n_pes
        );
        let words = size_of::<TeamWords>().next_multiple_of(PAGE);
        let start = words + 2 * STAGE_BYTES + from * MAILBOX_BYTES + index * MAIL_SLOT_BYTES;
        self.team_block(pe, slot).wrapping_add(start)
    }

    /// Returns the address, in this process, of a byte in the heap of PE `pe`. `at` is the offset
    /// of the byte from the start of the PE's segment.
    #[inline]
    pub(crate) fn symmetric(&self, pe: usize, at: SymOffset) -> *mut u8 {
        debug_assert!(pe < self.layout.n_pes && at.0 >= self.layout.heap_start as u64 && at.0 <= self.layout.stride as u64);
        self.base.wrapping_add(self.layout.stride * pe + at.0 as usize)
    }

    /// Returns a 64-bit word in the heap of PE `pe`. `at` is the offset of the word from the start
    /// of the PE's segment, in bytes. The offset must be a multiple of 8.
    #[inline]
    pub(crate) fn word(&self, pe: usize, at: SymOffset) -> &AtomicU64 {
        debug_assert!(at.0.is_multiple_of(8));
        // SAFETY: [L1] the core has checked that the word is in a live allocation and aligned. [L2]
        // It is accessed atomically or by `simd`.
        unsafe { &*self.symmetric(pe, at).cast::<AtomicU64>() }
    }

    /// Returns the address, in this process, of the segment of a PE.
    pub(crate) fn segment(&self, pe: usize) -> *mut u8 {
        self.at(pe, 0)
    }

    /// Zeroes the words by which kernels of a team synchronize, in the segment of PE `pe`. `slot`
    /// is the slot of the team.
    pub(crate) fn reset_kernel_lines(&self, pe: usize, slot: usize, team_size: usize) {
        let start = self.layout.kernel_lines(slot).0 as usize;
        for line in 0..team_size * KERNEL_SLOTS as usize {
            let at = self.at(pe, start + line * KernelContext::SIGNAL_LINE_BYTES as usize).cast::<AtomicU64>();
            // SAFETY: [L1] the word is inside the mapping, because the lines of `n_pes` ranks are
            // part of the team's block. It is aligned, because lines and their start are multiples
            // of 128. [L2] It is accessed atomically, here and by kernels.
            let word = unsafe { &*at };
            // Zero words are not written, because pages that were never written take no memory.
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Returns the addresses and sizes of the heaps, as plain data for kernels.
    pub(crate) fn geometry(&self, my_pe: Pe) -> HeapGeometry {
        HeapGeometry {
            base: self.base as u64,
            stride: self.layout.stride as u64,
            heap_start: self.layout.heap_start as u64,
            heap_bytes: self.layout.heap_bytes as u64,
            my_pe: my_pe.get(),
            n_pes: self.layout.n_pes as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_segment_are_disjoint_and_aligned() {
        let layout = Layout::new(5, 10 << 20).unwrap();
        // SAFETY: no address below is dereferenced.
        let segments = unsafe { Segments::new((1usize << 40) as *mut u8, layout) };
        let mut ends = 0;
        for pe in 0..5 {
            for slot in 0..MAX_TEAMS {
                for parity in 0..2 {
                    assert_eq!(segments.block(pe, slot).stage(parity) as usize % 4096, 0);
                }
                assert_eq!(segments.block(pe, slot).stage(1) as usize - segments.block(pe, slot).stage(0) as usize, STAGE_BYTES);
                assert_eq!(segments.mail_at(pe, slot, 0, 0) as usize, segments.block(pe, slot).stage(1) as usize + STAGE_BYTES);
                for from in 0..5 {
                    for index in 0..MAILBOX_SLOTS {
                        let at = segments.mail_at(pe, slot, from, index) as usize;
                        assert!(at >= ends && at.is_multiple_of(128), "mailboxes overlap");
                        ends = at + MAIL_SLOT_BYTES;
                    }
                }
            }
            assert!(ends <= segments.symmetric(pe, SymOffset(layout.heap_start())) as usize);
        }
    }

    #[test]
    fn addresses_of_segments_differ_in_their_lower_28_bits() {
        for heap_bytes in [1 << 20, 64 << 20, 100 << 20, 1 << 30, 3 << 30] {
            let layout = Layout::new(64, heap_bytes).unwrap();
            let lower: std::collections::HashSet<_> = (0..64).map(|pe| layout.stride * pe % (1 << 28)).collect();
            assert_eq!(lower.len(), 64, "heaps of {heap_bytes} bytes have the stride {:#x}", layout.stride);
        }
    }

    #[test]
    fn layout_beyond_the_address_space_is_refused() {
        assert_eq!(Layout::new(8, usize::MAX - 4096), None);
        assert_eq!(Layout::new(1 << 20, 1 << 40), None);
    }
}
