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
    /// The kernel moves no data, because the input already is the sum over all ranks. The kernel
    /// only adds the residual and normalises.
    None,
    /// Every rank pushes its whole input to every rank.
    OneShot,
    /// Every rank reduces one part of each row, adds the residual, and pushes the sum to every
    /// rank.
    TwoShot,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 3] = [Self::None, Self::OneShot, Self::TwoShot];
}

/// The element type of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Output {
    /// The element type of the input.
    Same = 0,
    /// 8-bit floats (E4M3). Values beyond their range saturate.
    F8E4M3 = 1,
    /// 8-bit integers. Values beyond their range saturate.
    I8 = 2,
}

impl Output {
    /// Returns the number to which the largest absolute value of a row is scaled if each row has
    /// its own scale ([`Norm::scales`]).
    pub const fn largest(self) -> f32 {
        match self {
            Self::Same => 1.0,
            Self::F8E4M3 => 448.0,
            Self::I8 => 127.0,
        }
    }
}

/// The arguments that the kernel takes in addition to a [`Call`](crate::Call). The `count` of the
/// `Call` is the number of elements in the input. All addresses are valid on this rank's device.
///
/// All fields except addresses must be the same on all ranks, and so must the contents of the
/// residual and of the weight.
#[derive(Clone, Copy, Debug, PartialEq, KernelArg)]
#[repr(C)]
pub struct Norm {
    /// Address of the residual, which is as long as the input. The kernel replaces the residual by
    /// `x`. The residual must not overlap any other operand.
    pub residual: u64,
    /// Address of the weight, which is as long as a row.
    pub weight: u64,
    /// Address to which the kernel writes the scale of each row, as `f32`. If this is 0, all rows
    /// have the same scale, and [`inverse_scale`](Self::inverse_scale) holds its inverse. Used only
    /// for quantised results.
    pub scales: u64,
    /// Number of rows.
    pub rows: u64,
    /// Number of lines in a row, at least 1.
    pub row_lines: u64,
    /// The number that is added to the mean of the squares: positive and finite.
    pub epsilon: f32,
    /// Factor by which results are multiplied before they are quantised, if `scales` is 0.
    pub inverse_scale: f32,
    /// The element type of the result: `Output as u32`.
    pub output: u32,
    /// Unused; 0.
    pub reserved: u32,
}

/// The scale of a row is computed from the row's largest absolute value or from this value,
/// whichever is larger. So the scale of a row of zeros is not 0.
pub const SMALLEST_SCALED: f32 = 1.0 / 512.0;

/// Returns the number of lines in the part of a row that each rank reduces with
/// [`Algorithm::TwoShot`]. The parts of the last ranks may be shorter.
pub const fn part_lines(row_lines: u64, ranks: u32) -> u64 {
    row_lines.div_ceil(ranks as u64)
}

/// Returns the size in bytes of a bank that has room for `rows` rows of `row_lines` lines.
pub const fn bank_bytes(algorithm: Algorithm, rows: u64, row_lines: u64, ranks: u32) -> u64 {
    let lines = match algorithm {
        Algorithm::None => 0,
        Algorithm::OneShot => rows * row_lines * ranks as u64,
        Algorithm::TwoShot => rows * (part_lines(row_lines, ranks) * ranks as u64 + row_lines),
    };
    lines * LINE_BYTES as u64
}

/// Returns the minimum number of lines in a row for [`Algorithm::TwoShot`]. From this number on,
/// every rank reduces a part, so each pair of ranks exchanges a line in both directions.
pub const fn two_shot_min_lines(ranks: u32) -> u64 {
    ranks as u64 * ranks as u64
}
