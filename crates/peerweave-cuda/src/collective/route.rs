//! Chooses the algorithm of a call and the shape of its launch. The functions depend only on values
//! that are the same on all ranks; thresholds are tables.

use peerweave_collectives::{Algorithm, LINE_BYTES, all_reduce};
use peerweave_types::DType;

/// An algorithm and the shape of its launch. All ranks of a call use the same route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// Algorithm that moves the data.
    pub algorithm: Algorithm,
    /// Number of blocks.
    pub blocks: u32,
    /// Number of threads of a block: a multiple of 32, at most 512.
    pub threads: u32,
}

impl Route {
    /// Creates a route from an algorithm, a number of blocks and a number of threads of a block.
    pub const fn new(algorithm: Algorithm, blocks: u32, threads: u32) -> Self {
        Self { algorithm, blocks, threads }
    }
}

/// Limits of a team's memory and devices. They are the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) ranks: u32,
    pub(crate) bank_bytes: u64,
    /// Maximum length in bytes of a message that is sent by lines.
    pub(crate) channel_bytes: u64,
    pub(crate) max_blocks: u32,
}

/// A row of a table, for calls up to a number of bytes.
#[derive(Clone, Copy, Debug)]
struct Row {
    up_to: u64,
    algorithm: Algorithm,
    /// Number of lines of the thread with most lines, if `blocks` does not limit the grid.
    lines: u64,
    blocks: u32,
    threads: u32,
}

const fn row(up_to: u64, algorithm: Algorithm, lines: u64, blocks: u32, threads: u32) -> Row {
    Row { up_to, algorithm, lines, blocks, threads }
}

/// Maximum size in bytes of a call whose kernel may begin before the previous kernel has ended.
/// Blocks of a larger call would take multiprocessors from blocks that still work.
pub(crate) const PROGRAMMATIC_UP_TO: u64 = MIB;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

// The rows for two ranks were measured on H200. The rows for more ranks are from CUDA C++ programs
// of the same design. All blocks of a row are resident at once on a GPU with 128 multiprocessors.

/// all_reduce by two ranks. One step moves as much data as two steps, so two-shot is not used.
const TWO: &[Row] = &[
    row(8 * KIB, Algorithm::OneShot, 1, 4, 128),
    row(64 * KIB, Algorithm::OneShot, 1, 32, 128),
    row(512 * KIB, Algorithm::OneShot, 1, 128, 256),
    row(2 * MIB, Algorithm::OneShot, 1, 128, 512),
    row(16 * MIB, Algorithm::TwoShot, 1, 128, 512),
    row(u64::MAX, Algorithm::Chunked, 1, 256, 256),
];

/// all_reduce by three and four ranks.
const FOUR: &[Row] = &[
    row(8 * KIB, Algorithm::OneShot, 1, 4, 128),
    row(128 * KIB, Algorithm::OneShot, 1, 64, 128),
    row(MIB, Algorithm::TwoShot, 1, 128, 128),
    row(16 * MIB, Algorithm::TwoShot, 1, 128, 512),
    row(u64::MAX, Algorithm::Chunked, 1, 256, 256),
];

/// all_reduce by five to eight ranks.
const EIGHT: &[Row] = &[
    row(8 * KIB, Algorithm::OneShot, 1, 4, 128),
    row(64 * KIB, Algorithm::OneShot, 1, 32, 128),
    row(MIB, Algorithm::TwoShot, 1, 128, 128),
    row(4 * MIB, Algorithm::TwoShot, 1, 128, 256),
    row(16 * MIB, Algorithm::TwoShot, 1, 128, 512),
    row(u64::MAX, Algorithm::Chunked, 1, 256, 256),
];

/// Returns the route of an all_reduce of `count` elements.
pub(crate) fn all_reduce(dtype: DType, count: u64, limits: &Limits) -> Route {
    let bytes = count.saturating_mul(dtype.size_bytes() as u64);
    let lines = bytes.div_ceil(LINE_BYTES as u64);
    let table = match limits.ranks {
        ..=2 => TWO,
        3..=4 => FOUR,
        _ => EIGHT,
    };
    let row = table.iter().find(|row| bytes <= row.up_to && holds(row.algorithm, lines, limits));
    let row = row.unwrap_or(&table[table.len() - 1]);
    let busy = match row.algorithm {
        Algorithm::OneShot => lines,
        Algorithm::TwoShot | Algorithm::Chunked => lines.div_ceil(u64::from(limits.ranks)),
    };
    // A block has no more threads than lines, rounded up to whole warps.
    let threads = row.threads.min(u32::try_from(busy.next_multiple_of(32)).unwrap_or(u32::MAX)).max(32);
    let blocks = busy.div_ceil(row.lines * u64::from(threads)).clamp(1, u64::from(row.blocks.min(limits.max_blocks)));
    Route::new(row.algorithm, blocks as u32, threads)
}

/// Returns the route of a collective that pushes lines to the rank that needs them, for parts of
/// `bytes` bytes.
pub(crate) fn parts(bytes: u64, limits: &Limits) -> Route {
    let lines = bytes.div_ceil(LINE_BYTES as u64);
    let most = if lines <= 32 << 10 { 128 } else { 512 };
    let threads = most.min(u32::try_from(lines.next_multiple_of(32)).unwrap_or(u32::MAX)).max(32);
    let blocks = lines.div_ceil(u64::from(threads)).clamp(1, u64::from(limits.max_blocks.min(128)));
    Route::new(Algorithm::OneShot, blocks as u32, threads)
}

/// Maximum size in bytes of all parts up to which all_gather and all_to_all use lines, if the banks
/// have room. Longer parts are sent as messages.
const PARTS_BY_LINES: u64 = 16 * MIB;

/// Returns whether all_gather and all_to_all of parts of `bytes` bytes use lines.
pub(crate) fn parts_by_lines(bytes: u64, limits: &Limits) -> bool {
    let all = bytes.saturating_mul(u64::from(limits.ranks));
    all <= PARTS_BY_LINES && lines_of(bytes) * u64::from(limits.ranks) * LINE_BYTES as u64 <= limits.bank_bytes
}

/// Returns whether a reduce_scatter of parts of `bytes` bytes uses lines in one launch.
pub(crate) fn scatters_by_lines(bytes: u64, limits: &Limits) -> bool {
    lines_of(bytes) * u64::from(limits.ranks) * LINE_BYTES as u64 <= limits.bank_bytes
}

fn lines_of(bytes: u64) -> u64 {
    bytes.div_ceil(LINE_BYTES as u64)
}

/// Returns whether a message of `bytes` bytes is sent by lines. Its sender and its receiver both
/// call this function and know only the length of each other's message, so the result depends on
/// nothing else.
pub(crate) fn by_lines(bytes: u64, limits: &Limits) -> bool {
    bytes <= limits.channel_bytes
}

/// Minimum size in bytes of a broadcast to more than one rank whose root sends a different part to
/// each rank, which then passes it on.
pub(crate) const SCATTERED_FROM: u64 = 2 * MIB;

/// Returns the number of pairs of blocks (of blocks with `is_combined`) that share a message
/// through rings. It is the same for all messages, so that sender and receiver divide a message in
/// the same way.
pub(crate) fn ring_pairs(max_blocks: u32) -> u32 {
    (max_blocks / 2).clamp(1, 128)
}

/// Returns the shape of launches whose messages go through rings.
pub(crate) fn ring(limits: &Limits, is_combined: bool) -> Route {
    let pairs = ring_pairs(limits.max_blocks);
    if is_combined { Route::new(Algorithm::Chunked, pairs, 512) } else { Route::new(Algorithm::Chunked, 2 * pairs, 256) }
}

/// Returns the number of lines of a chunk of a message of `bytes` bytes: at most `slot_lines`.
pub(crate) fn chunk_lines(bytes: u64, slot_lines: u64, limits: &Limits) -> u64 {
    lines_of(bytes).div_ceil(u64::from(ring_pairs(limits.max_blocks))).clamp(1, slot_lines)
}

/// Returns whether the staging memory has room for a call of `lines` lines by an algorithm, and the
/// algorithm supports this number of lines.
pub(crate) fn holds(algorithm: Algorithm, lines: u64, limits: &Limits) -> bool {
    match algorithm {
        Algorithm::OneShot => all_reduce::one_shot_bank_bytes(lines, limits.ranks) <= limits.bank_bytes,
        Algorithm::TwoShot => {
            lines >= all_reduce::two_shot_min_lines(limits.ranks)
                && all_reduce::two_shot_bank_bytes(lines, limits.ranks) <= limits.bank_bytes
        }
        Algorithm::Chunked => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn limits(ranks: u32) -> Limits {
        Limits { ranks, bank_bytes: 32 * MIB, channel_bytes: MIB, max_blocks: 128 }
    }

    #[test]
    fn every_size_has_a_route_that_fits() {
        for ranks in 1..=8 {
            for shift in 0..34 {
                for count in [1_u64 << shift, (1 << shift) + 1, (3 << shift) - 1] {
                    let (limits, lines) = (limits(ranks), (2 * count).div_ceil(16));
                    let route = all_reduce(DType::BF16, count, &limits);
                    assert!(holds(route.algorithm, lines, &limits), "{count} elements: {route:?}");
                    assert!((1..=256).contains(&route.blocks) && (32..=512).contains(&route.threads), "{route:?}");
                    assert_eq!(route.threads % 32, 0, "{route:?}");
                }
            }
        }
    }

    #[test]
    fn small_calls_use_one_step_and_large_calls_use_a_ring() {
        for ranks in 2..=8 {
            let algorithm = |bytes: u64| all_reduce(DType::U8, bytes, &limits(ranks)).algorithm;
            assert_eq!(algorithm(1), Algorithm::OneShot);
            assert_eq!(algorithm(16 * KIB), Algorithm::OneShot);
            assert_eq!(algorithm(8 * MIB), Algorithm::TwoShot);
            assert_eq!(algorithm(256 * MIB), Algorithm::Chunked);
        }
    }

    #[test]
    fn calls_that_exceed_small_banks_use_the_ring() {
        let small = Limits { bank_bytes: 64 * KIB, ..limits(4) };
        assert_eq!(all_reduce(DType::F32, 4096, &small).algorithm, Algorithm::OneShot);
        assert_eq!(all_reduce(DType::F32, 1 << 20, &small).algorithm, Algorithm::Chunked);
    }
}
