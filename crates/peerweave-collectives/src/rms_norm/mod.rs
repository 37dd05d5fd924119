//! all_reduce, the addition of a residual and RMSNorm in one kernel, with an optional quantisation.
//!
//! For an input of rows, each rank computes
//!
//! - `x = all_reduce(input) + residual`, which replaces the residual,
//! - `y = x · weight / √(mean(x²) + epsilon)`, the result, for each row.
//!
//! The sum of the ranks is computed in `f32` and rounded to the element type, as in
//! [`crate::all_reduce`]. `x` is computed in `f32` from this rounded sum and rounded once. `y` is
//! computed from the rounded `x` in `f32` and rounded once. So the result has the same bits as the
//! result of an all_reduce followed by [`Algorithm::None`] of this module.
//!
//! | algorithm | what travels | when |
//! |---|---|---|
//! | [`Algorithm::None`] | nothing: the sum is computed already | comparisons |
//! | [`Algorithm::OneShot`] | each rank pushes its rows to every rank, which reduces and normalises them | few rows |
//! | [`Algorithm::TwoShot`] | each rank pushes part `r` of each row to rank `r`, which reduces it, adds the residual, and pushes that part of `x` | many rows |
//!
//! With one-shot and two-shot, every rank normalises every row itself. So two-shot moves only `x`,
//! and not the results, and its work is balanced for any number of rows. The ranks get the same
//! bits, because each computes them from the same `x` in the same order.
//!
//! One block of a rank handles a row in all steps. So a thread synchronises only with the threads
//! of its own block, and the result may overwrite the input.
//!
//! Rows are whole lines, and all operands are aligned to lines.

mod entries;
mod one_shot;
mod plain;
mod row;
mod two_shot;

use crate::LINE_BYTES;
use peerweave_device::prelude::*;

pub use entries::*;

/// The algorithm by which the kernel moves its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Moves nothing: the input is the sum of all ranks already. Adds the residual and normalises.
    None,
    /// Every rank pushes its whole input to every rank.
    OneShot,
    /// Every rank reduces one part of each row and pushes it to every rank.
    TwoShot,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 3] = [Self::None, Self::OneShot, Self::TwoShot];
}

/// The type of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Output {
    /// The type of the input.
    Same = 0,
    /// 8-bit floats (E4M3), saturated.
    F8E4M3 = 1,
    /// 8-bit integers, saturated.
    I8 = 2,
}

impl Output {
    /// Returns the value to which the largest value of a row is scaled with [`Norm::scales`].
    pub const fn largest(self) -> f32 {
        match self {
            Self::Same => 1.0,
            Self::F8E4M3 => 448.0,
            Self::I8 => 127.0,
        }
    }
}

/// The arguments of the kernel besides the [`Call`](crate::Call), whose `count` is the number of
/// elements of the input. All addresses are valid on this rank's device.
///
/// The values and the contents of residual and weight must be the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, KernelArg)]
#[repr(C)]
pub struct Norm {
    /// Address of the residual, as long as the input. The kernel replaces the residual by `x`. It
    /// overlaps no other operand.
    pub residual: u64,
    /// Address of the weight, as long as a row.
    pub weight: u64,
    /// Address of one `f32` for each row, which gets the scale of the row; 0 if all rows have the
    /// scale of [`inverse_scale`](Self::inverse_scale). Only for quantised results.
    pub scales: u64,
    /// Number of rows.
    pub rows: u64,
    /// Number of lines of a row, at least 1.
    pub row_lines: u64,
    /// The number that is added to the mean of the squares: positive and finite.
    pub epsilon: f32,
    /// Factor by which results are multiplied before they are quantised.
    pub inverse_scale: f32,
    /// The type of the result: [`Output`] as a number.
    pub output: u32,
    /// Unused; 0.
    pub reserved: u32,
}

/// Lower bound of the largest absolute value from which the scale of a row is computed. So the
/// scale of a row of zeros is not 0.
pub const SMALLEST_SCALED: f32 = 1.0 / 512.0;

/// Returns the number of lines of each rank's part of a row with [`Algorithm::TwoShot`]. Parts of
/// the last ranks may be shorter.
pub const fn part_lines(row_lines: u64, ranks: u32) -> u64 {
    row_lines.div_ceil(ranks as u64)
}

/// Returns the size in bytes of a bank that has room for `rows` rows.
pub const fn bank_bytes(algorithm: Algorithm, rows: u64, row_lines: u64, ranks: u32) -> u64 {
    let lines = match algorithm {
        Algorithm::None => 0,
        Algorithm::OneShot => rows * row_lines * ranks as u64,
        Algorithm::TwoShot => rows * (part_lines(row_lines, ranks) * ranks as u64 + row_lines),
    };
    lines * LINE_BYTES as u64
}

/// Returns the minimum number of lines of a row for [`Algorithm::TwoShot`]. With this number every
/// rank has a part, so every two ranks exchange a line in both directions.
pub const fn two_shot_min_lines(ranks: u32) -> u64 {
    ranks as u64 * ranks as u64
}
