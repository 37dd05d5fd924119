//! The collective all_reduce: every rank gets the reduction of the inputs of all ranks.

mod chunked;
mod entries;
mod one_shot;
mod two_shot;

use crate::LINE_BYTES;

pub use chunked::{FLAG_BYTES, ring_bytes};
pub use entries::*;

/// Returns the size in bytes of a bank, for [`Algorithm::OneShot`](crate::Algorithm::OneShot) with
/// an input of `lines` 16-byte lines. A staging area has two banks, which successive launches use
/// alternately.
pub const fn one_shot_bank_bytes(lines: u64, ranks: u32) -> u64 {
    lines * ranks as u64 * LINE_BYTES as u64
}

/// Returns the size in bytes of a bank, for [`Algorithm::TwoShot`](crate::Algorithm::TwoShot) with
/// an input of `lines` 16-byte lines. A staging area has two banks, which successive launches use
/// alternately.
pub const fn two_shot_bank_bytes(lines: u64, ranks: u32) -> u64 {
    2 * lines.div_ceil(ranks as u64) * ranks as u64 * LINE_BYTES as u64
}

/// Returns the minimum length of an input, in lines of 16 bytes, for
/// [`Algorithm::TwoShot`](crate::Algorithm::TwoShot). With at least this length, each pair of ranks
/// sends at least one line in each direction.
pub const fn two_shot_min_lines(ranks: u32) -> u64 {
    ranks as u64 * ranks as u64
}
