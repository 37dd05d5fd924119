//! The collective all_reduce: every rank gets the reduction of the inputs of all ranks.

mod chunked;
mod entries;
mod one_shot;
mod two_shot;

use crate::LINE_BYTES;

pub use chunked::{FLAG_BYTES, ring_bytes};
pub use entries::*;

/// Returns the size in bytes of each of the two banks of a staging area.
/// [`Algorithm::OneShot`](crate::Algorithm::OneShot) needs banks of this size for an input of
/// `lines` 16-byte lines.
pub const fn one_shot_bank_bytes(lines: u64, ranks: u32) -> u64 {
    lines * ranks as u64 * LINE_BYTES as u64
}

/// Returns the size in bytes of each of the two banks of a staging area.
/// [`Algorithm::TwoShot`](crate::Algorithm::TwoShot) needs banks of this size for an input of
/// `lines` 16-byte lines.
pub const fn two_shot_bank_bytes(lines: u64, ranks: u32) -> u64 {
    2 * lines.div_ceil(ranks as u64) * ranks as u64 * LINE_BYTES as u64
}

/// Returns the minimum length of an input, in lines of 16 bytes, for
/// [`Algorithm::TwoShot`](crate::Algorithm::TwoShot). With at least this length, each pair of ranks
/// sends at least one line in each direction.
pub const fn two_shot_min_lines(ranks: u32) -> u64 {
    ranks as u64 * ranks as u64
}
