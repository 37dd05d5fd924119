//! The memory of a team's collectives: staging areas on the symmetric heap, and counters in this
//! device's own memory.
//!
//! A staging area is memory to which other ranks push their data. It begins with two banks,
//! followed by channels for messages between pairs of ranks. Banks and channels consist of 16-byte
//! lines, which initially contain the sentinel. Flags and rings follow, which are initially zero.

use std::sync::Arc;

use peerweave_collectives::transfer::{self, CHANNELS_ZEROS, LINES_COUNTERS, RING_COUNTERS};
use peerweave_collectives::{Call, MAX_RANKS, Results, all_reduce};
use peerweave_driver::{CudaStream, Keep};
use peerweave_types::{Pe, Rank};

use super::CollectivesOptions;
use crate::error::{CudaError, misuse};
use crate::gpu::Gpu;
use crate::memory::{Local, Symmetric};
use crate::route::{Limits, ring_pairs};

/// Symmetric memory for the staging areas of one team. The memory is a part of an allocation, whose
/// other parts may belong to other teams.
#[derive(Clone)]
pub(crate) struct Room {
    pub(crate) memory: Arc<Symmetric<u8>>,
    /// Offset of the staging area in the allocation, in bytes. A multiple of 256.
    pub(crate) start: usize,
}

/// The staging memory of one team, with the counters of its kernels and templates for their
/// arguments.
pub(super) struct Staging {
    room: Room,
    /// Counters in this device's memory, in this order: one for launches, one for each block of a
    /// reduction through rings, those for messages sent as lines, and those for messages sent
    /// through rings.
    counters: Local<u64>,
    /// Template for the argument of kernels that use the two banks of the staging area. Launches
    /// use the banks alternately. Each call copies the template, and sets the values that differ
    /// between calls.
    pub(super) banks: Call,
    /// Template for the argument of reduction kernels that use rings. Each call copies the
    /// template, and sets the values that differ between calls.
    pub(super) rings: Call,
    /// Template for the argument of kernels that send messages as 16-byte lines. Each launch copies
    /// the template, and sets the values that differ between launches.
    pub(super) channels: Call,
    /// Template for the argument of kernels that send messages through rings. Each launch copies
    /// the template, and sets the values that differ between launches.
    pub(super) transfer_rings: Call,
    pub(super) limits: Limits,
    bytes: usize,
}

/// Alignment in bytes of the parts of a staging area.
const ALIGNMENT: u64 = 256;

/// Returns the size in bytes of a staging area for a team with these options.
pub(super) fn area_bytes(options: &CollectivesOptions) -> u64 {
    let Offsets { end, .. } = Offsets::new(options);
    end
}

/// Returns the maximum length in bytes of a message that is sent as 16-byte lines, in a team of
/// `ranks` ranks. For each sender, a staging area has a channel with room for two such messages.
/// All channels of an area together have about half the size of a bank (a buffer in which a rank
/// receives the data of a collective), or less.
fn channel_bytes(options: &CollectivesOptions, ranks: usize) -> u64 {
    let of_most = (options.bank_bytes / 32).next_multiple_of(128);
    of_most * (MAX_RANKS / ranks.next_power_of_two().clamp(2, MAX_RANKS)) as u64
}

/// Returns the size in bytes of a slot in the rings for messages. A kernel for messages has half as
/// many rings as a kernel for reductions, so its slots are twice as large.
fn transfer_slot_bytes(options: &CollectivesOptions) -> u64 {
    2 * options.slot_bytes
}

/// Offsets in bytes inside a staging area, the memory to which other ranks push their data. The
/// area begins with two banks. The channels for short messages follow, then the rings of
/// reductions, and last the rings of messages. The offsets are the same for any number of ranks.
struct Offsets {
    channels: u64,
    rings: u64,
    transfer_rings: u64,
    end: u64,
}

impl Offsets {
    fn new(options: &CollectivesOptions) -> Self {
        let channels = 2 * options.bank_bytes.next_multiple_of(ALIGNMENT);
        let all_channels = transfer::channels_bytes(MAX_RANKS as u32, channel_bytes(options, MAX_RANKS));
        let rings = (channels + all_channels).next_multiple_of(ALIGNMENT);
        let transfer_rings = rings + all_reduce::ring_bytes(options.max_blocks, options.slot_bytes);
        let end = transfer_rings + transfer::transfer_ring_bytes(ring_pairs(options.max_blocks), transfer_slot_bytes(options));
        Self { channels, rings, transfer_rings, end }
    }
}

impl Staging {
    /// Creates the staging memory of a team in the symmetric memory `room`. Writes the sentinel
    /// into all lines of this PE's staging area, and zeros into the rest of the area. `members`
    /// must include this PE. `room` has [`area_bytes`] bytes at the same offset on every member.
    pub(super) fn new(
        gpu: &Gpu,
        members: &[Pe],
        rank: Rank,
        sentinel: [u64; 2],
        options: &CollectivesOptions,
        room: Room,
    ) -> Result<Self, CudaError> {
        let bank_bytes = options.bank_bytes.next_multiple_of(ALIGNMENT);
        let start = room.memory.offset().0 + room.start as u64;
        let blocks = options.max_blocks as usize;
        let counters = gpu.alloc_local::<u64>(1 + blocks + LINES_COUNTERS + RING_COUNTERS * blocks)?;
        let (ranks, me) = (members.len(), rank.get() as usize);
        let mut banks = Call {
            areas: [0; MAX_RANKS],
            pes: [0; MAX_RANKS],
            send: 0,
            recv: 0,
            count: 0,
            sentinel,
            counter: counters.slice().address(),
            bank_bytes,
            stride: 0,
            scalar: 0,
            ranks: ranks as u32,
            rank: rank.get(),
            op: 0,
            max_blocks: options.max_blocks,
            results: Results::Every.code(),
            is_symmetric: 0,
            is_combined: 0,
            is_exclusive: 0,
        };
        for k in 0..ranks {
            let pe = members[(me + k) % ranks];
            banks.areas[k] = gpu.0.base_of(pe)?.saturating_add(start);
            banks.pes[k] = pe.get();
        }
        let offsets = Offsets::new(options);
        let rings = part_of(&banks, offsets.rings, 1, options.slot_bytes);
        let channel_bytes = channel_bytes(options, ranks);
        let channels = part_of(&banks, offsets.channels, 1 + blocks, channel_bytes);
        let slot_bytes = transfer_slot_bytes(options);
        let transfer_rings = part_of(&banks, offsets.transfer_rings, 1 + blocks + LINES_COUNTERS, slot_bytes);
        let transfer_rings = Call { max_blocks: ring_pairs(options.max_blocks), ..transfer_rings };
        let limits = Limits { ranks: ranks as u32, bank_bytes, channel_bytes, max_blocks: options.max_blocks };
        let bytes = area_bytes(options) as usize;
        let staging = Self { room, counters, banks, rings, channels, transfer_rings, limits, bytes };
        staging.fill(gpu)?;
        Ok(staging)
    }

    /// Writes the sentinel into all lines of this PE's staging area, and zeros into the rest of the
    /// area and into the counters. Waits for completion. No kernel of the team may run on any PE.
    pub(super) fn fill(&self, gpu: &Gpu) -> Result<(), CudaError> {
        /// Length in bytes of the host buffer from which the lines are filled with the sentinel. A
        /// longer range of lines is filled by several copies of the buffer.
        const PIECE: usize = 4 << 20;
        let stream = &gpu.0.stream;
        self.room.memory.zero_range(stream, self.room.start..self.room.start + self.bytes)?;
        let [low, high] = self.banks.sentinel.map(u64::to_le_bytes);
        let piece: Vec<u8> = low.into_iter().chain(high).cycle().take(PIECE).collect();
        let banks = 2 * self.banks.bank_bytes;
        let channels = transfer::channels_bytes(self.limits.ranks, self.limits.channel_bytes);
        for lines in [0..banks, banks + CHANNELS_ZEROS..banks + channels] {
            for start in lines.clone().step_by(PIECE) {
                let bytes = (lines.end - start).min(PIECE as u64) as usize;
                self.room.memory.write(stream, self.room.start + start as usize, &piece[..bytes])?;
            }
        }
        self.counters.write(stream, &vec![0; self.counters.len()])?;
        gpu.wait(stream)
    }

    /// Records that work of the caller on `stream` uses the staging memory. The memory then stays
    /// allocated until the stream has completed that work.
    pub(super) fn note(&self, stream: &Arc<CudaStream>) {
        self.room.memory.note(stream);
        self.counters.note(stream);
    }

    /// Returns handles of the staging memory and the counters. A graph must own these handles, so
    /// that the memory stays allocated.
    pub(super) fn keep(&self) -> impl Iterator<Item = Keep> {
        self.room.memory.keep().into_iter().chain(self.counters.keep())
    }

    /// Frees the symmetric memory if no other team uses the same allocation. All PEs must call this
    /// function.
    pub(super) fn free(self, gpu: &Gpu) -> Result<(), CudaError> {
        Arc::into_inner(self.room.memory).map_or(Ok(()), |memory| gpu.free(memory))
    }
}

/// Returns the kernel argument for one part of the staging areas, such as the channels: a copy of
/// `banks` with other addresses. The part begins `offset` bytes after the start of each area. Its
/// counters begin at index `counter` of the team's counters. `bank_bytes` replaces the field of the
/// same name.
fn part_of(banks: &Call, offset: u64, counter: usize, bank_bytes: u64) -> Call {
    let areas = banks.areas.map(|area| area + offset);
    Call { areas, counter: banks.counter + 8 * counter as u64, bank_bytes, ..*banks }
}

/// Returns the rank of this PE among `members`. Fails if the list does not contain this PE,
/// contains a PE twice, or has a length that the kernels do not support.
pub(super) fn rank_of(call: &'static str, gpu: &Gpu, members: &[Pe]) -> Result<Rank, CudaError> {
    if members.is_empty() || members.len() > MAX_RANKS {
        return Err(misuse(call, "members", format!("{} PEs", members.len()), &format!("1 to {MAX_RANKS} PEs")));
    }
    let twice = members.iter().enumerate().find(|(at, pe)| members[..*at].contains(pe));
    if let Some((_, pe)) = twice {
        return Err(misuse(call, "members", format!("a list with {pe} twice"), "a list with each PE at most once"));
    }
    let rank = members.iter().position(|pe| *pe == gpu.pe());
    let rank = rank.ok_or_else(|| misuse(call, "members", format!("a list without {}", gpu.pe()), "a list with this PE"))?;
    Ok(Rank::new(rank as u32))
}
