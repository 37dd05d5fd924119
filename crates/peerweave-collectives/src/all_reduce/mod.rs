//! all_reduce: every rank gets the reduction of all inputs.

mod chunked;
mod entries;
mod one_shot;
mod two_shot;

use crate::LINE_BYTES;

pub use chunked::{FLAG_BYTES, ring_bytes};
pub use entries::*;

/// Bytes of a bank for so many lines by [`Algorithm::OneShot`](crate::Algorithm::OneShot).
pub const fn one_shot_bank_bytes(lines: u64, ranks: u32) -> u64 {
    lines * ranks as u64 * LINE_BYTES as u64
}

/// Bytes of a bank for so many lines by [`Algorithm::TwoShot`](crate::Algorithm::TwoShot).
pub const fn two_shot_bank_bytes(lines: u64, ranks: u32) -> u64 {
    2 * lines.div_ceil(ranks as u64) * ranks as u64 * LINE_BYTES as u64
}

/// Smallest number of lines for [`Algorithm::TwoShot`](crate::Algorithm::TwoShot): every rank then
/// has a part, so that a line travels between each two ranks in both directions.
pub const fn two_shot_min_lines(ranks: u32) -> u64 {
    ranks as u64 * ranks as u64
}
