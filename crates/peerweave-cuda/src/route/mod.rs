//! Chooses how a collective call is carried out: the provider, the algorithm, and the launch shape.
//! The choices depend only on values that are the same on all ranks. The thresholds are data in
//! route tables.
//!
//! ```text
//!  decide.rs    the choice for a call, and its reason
//!  explain.rs   the choice as text
//!  norm.rs      the choice for an all_reduce with RMSNorm
//!  forced.rs    choices of the caller, which replace the choices of the table
//!  table.rs     the table: rows and thresholds     parse.rs   its file format
//!  tune.rs      makes a table from measured times
//! ```

mod decide;
mod explain;
mod forced;
mod norm;
mod parse;
mod table;
mod tune;

use peerweave_collectives::{Algorithm, LINE_BYTES, all_reduce};

pub(crate) use decide::{Libraries, OwnPath, Unfit, most_part_bytes};
pub use decide::{Provider, Query};
pub use explain::Explanation;
pub use forced::{Forced, ForcedError, Method};
pub(crate) use norm::{NormRoute, norm, norm_by};
pub use parse::RoutesError;
pub use table::RouteTable;
pub use tune::Timing;

/// An algorithm, with the launch shape of its kernel. All ranks of a call use the same route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// The algorithm by which the kernel moves the data.
    pub algorithm: Algorithm,
    /// Number of blocks in the launch.
    pub blocks: u32,
    /// Number of threads in each block: a multiple of 32, at most 512.
    pub threads: u32,
}

impl Route {
    /// Creates a route from an algorithm, the number of blocks, and the number of threads in each
    /// block.
    pub const fn new(algorithm: Algorithm, blocks: u32, threads: u32) -> Self {
        Self { algorithm, blocks, threads }
    }
}

/// The route table, and the methods that the caller has chosen in its place. All teams of a PE
/// share one `Routes`. Its content must be the same on all PEs.
#[derive(Debug)]
pub(crate) struct Routes {
    pub(crate) table: RouteTable,
    pub(crate) forced: Forced,
}

impl Routes {
    pub(crate) fn new(table: RouteTable) -> Self {
        Self { table, forced: Forced::default() }
    }
}

/// The properties of a team that limit its routes (algorithms and launch shapes). All ranks of a
/// team have the same limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) ranks: u32,
    pub(crate) bank_bytes: u64,
    /// Maximum length in bytes of a message that is sent as 16-byte lines.
    pub(crate) channel_bytes: u64,
    pub(crate) max_blocks: u32,
}

/// Returns the route of a collective in which each rank pushes parts of `bytes` bytes to other
/// ranks, as 16-byte lines.
pub(crate) fn parts(bytes: u64, limits: &Limits) -> Route {
    let lines = lines_of(bytes);
    let most = if lines <= 32 << 10 { 128 } else { 512 };
    let threads = most.min(u32::try_from(lines.next_multiple_of(32)).unwrap_or(u32::MAX)).max(32);
    let blocks = lines.div_ceil(u64::from(threads)).clamp(1, u64::from(limits.max_blocks.min(128)));
    Route::new(Algorithm::OneShot, blocks as u32, threads)
}

/// Returns whether a bank, a buffer in the staging memory of each rank, has room for one part from
/// every rank. A part has `bytes` bytes.
pub(super) fn banks_hold_parts(bytes: u64, limits: &Limits) -> bool {
    lines_of(bytes).saturating_mul(u64::from(limits.ranks) * LINE_BYTES as u64) <= limits.bank_bytes
}

pub(super) fn lines_of(bytes: u64) -> u64 {
    bytes.div_ceil(LINE_BYTES as u64)
}

/// Returns whether a message of `bytes` bytes is sent as 16-byte lines and not through rings. The
/// sender and the receiver both call this function, and must get the same result. So the result
/// depends only on the limits of the team and on the length of the message.
pub(crate) fn by_lines(bytes: u64, limits: &Limits) -> bool {
    bytes <= limits.channel_bytes
}

/// Returns the number of block pairs, a sending block and a receiving block each, that transfer a
/// message through rings. For kernels in which each block both sends and receives, the result is
/// the number of blocks. The result depends only on `max_blocks`, which is the same on all ranks.
/// So the sender and the receiver divide a message into the same chunks.
pub(crate) fn ring_pairs(max_blocks: u32) -> u32 {
    (max_blocks / 2).clamp(1, 128)
}

/// Returns the route of a kernel that sends messages through rings. If `is_combined` is true, each
/// block both sends and receives chunks. Otherwise, blocks work in pairs: one block sends, and the
/// other block receives.
pub(crate) fn ring(limits: &Limits, is_combined: bool) -> Route {
    debug_assert!(is_combined || limits.max_blocks > 1, "one block is not a pair");
    let pairs = ring_pairs(limits.max_blocks);
    if is_combined { Route::new(Algorithm::Chunked, pairs, 512) } else { Route::new(Algorithm::Chunked, 2 * pairs, 256) }
}

/// Returns whether each block of a kernel that sends messages through rings both sends and receives
/// chunks. This is so in place, because a block sends a chunk before it overwrites the chunk, and
/// if one block must do both.
pub(crate) fn is_combined(limits: &Limits, in_place: bool) -> bool {
    in_place || limits.max_blocks < 2
}

/// Returns the length of a chunk in 16-byte lines, at most `slot_lines`. A message of `bytes` bytes
/// is sent through rings in chunks of this length.
pub(crate) fn chunk_lines(bytes: u64, slot_lines: u64, limits: &Limits) -> u64 {
    lines_of(bytes).div_ceil(u64::from(ring_pairs(limits.max_blocks))).clamp(1, slot_lines)
}

/// Returns whether an algorithm can carry out an all_reduce of `lines` 16-byte lines: whether the
/// staging memory has room, and the algorithm supports this number of lines.
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
