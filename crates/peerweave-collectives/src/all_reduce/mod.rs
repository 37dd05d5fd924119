//! all_reduce: every rank gets the reduction of all inputs.

mod chunked;
mod entries;
mod one_shot;
mod two_shot;

use crate::LINE_BYTES;

pub use chunked::{FLAG_BYTES, ring_bytes};
pub use entries::*;

/// Returns the size in bytes of each bank that [`Algorithm::OneShot`](crate::Algorithm::OneShot)
/// needs for an input of `lines` lines.
pub const fn one_shot_bank_bytes(lines: u64, ranks: u32) -> u64 {
    lines * ranks as u64 * LINE_BYTES as u64
}

/// Returns the size in bytes of each bank that [`Algorithm::TwoShot`](crate::Algorithm::TwoShot)
/// needs for an input of `lines` lines.
pub const fn two_shot_bank_bytes(lines: u64, ranks: u32) -> u64 {
    2 * lines.div_ceil(ranks as u64) * ranks as u64 * LINE_BYTES as u64
}

/// Returns the length in lines of the smallest input for which
/// [`Algorithm::TwoShot`](crate::Algorithm::TwoShot) can be used. From this length on, each
/// pair of ranks sends at least one line in each direction.
pub const fn two_shot_min_lines(ranks: u32) -> u64 {
    ranks as u64 * ranks as u64
}
