//! Kernels that carry out an all_reduce, add a residual, compute RMSNorm, and optionally quantise
//! the result.
//!
//! The input consists of rows. From it, each rank computes
//!
//! - `x = all_reduce(input) + residual`, which the kernel stores in the place of the residual,
//! - `y = x · weight / √(mean(x²) + epsilon)` for each row of `x`, which is the result.
//!
//! The sum of the ranks is computed in `f32` and rounded to the element type, as in
//! [`crate::all_reduce`]. `x` is computed in `f32` from this rounded sum and rounded once. `y` is
//! computed from the rounded `x` in `f32` and rounded once. So the result has the same bits as the
//! result of an all_reduce followed by [`Algorithm::None`] of this module.
//!
//! | algorithm | movement of data | suitable for |
//! |---|---|---|
//! | [`Algorithm::None`] | nothing: the input already is the sum | one rank, or a sum from an earlier call |
//! | [`Algorithm::OneShot`] | each rank pushes its rows to every rank, which reduces and normalises them | few rows |
//! | [`Algorithm::TwoShot`] | each rank pushes part `r` of each row to rank `r`, which reduces it, adds the residual, and pushes that part of `x` | many rows |
//!
//! In [`Algorithm::OneShot`] and [`Algorithm::TwoShot`], every rank normalises every row itself. So
//! two-shot moves only `x` and not the normalised rows, and all ranks have the same work for any
//! number of rows. All ranks get the same bits, because each rank computes its result from the same
//! `x` in the same order.
//!
//! On each rank, one block handles a row in all steps. So on its own rank, a thread synchronises
//! only with the threads of its block. Between ranks, a thread waits for lines of the other ranks.
//! The result may overwrite the input.
//!
//! The length of a row and the addresses of all operands are multiples of [`LINE_BYTES`].

mod entries;
mod one_shot;
mod plain;
mod row;
mod two_shot;

use crate::LINE_BYTES;
use peerweave_device::prelude::*;

pub use entries::*;

/// The algorithm by which an RMSNorm kernel computes the sum over all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// The kernel moves no data, because the input already is the sum over all ranks. The kernel
    /// only adds the residual and normalises.
    None,
    /// Every rank pushes its whole input to every rank, and reduces all rows itself.
    OneShot,
    /// Every rank reduces one part of each row, adds the residual to this part, and pushes the
    /// result to every rank.
    TwoShot,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 3] = [Self::None, Self::OneShot, Self::TwoShot];
}

/// The element type of the result of an RMSNorm kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Output {
    /// The result has the element type of the input, and is not quantised.
    Same = 0,
    /// The result is quantised to 8-bit floats (E4M3). Values beyond the range of the type
    /// saturate.
    F8E4M3 = 1,
    /// The result is quantised to signed 8-bit integers. Values beyond the range of the type
    /// saturate.
    I8 = 2,
}

impl Output {
    /// Returns the largest finite value of the quantised type, or 1 for [`Self::Same`]. If each row
    /// has its own scale ([`Norm::scales`]), the largest absolute value of a row is scaled to this
    /// value.
    pub const fn largest(self) -> f32 {
        match self {
            Self::Same => 1.0,
            Self::F8E4M3 => 448.0,
            Self::I8 => 127.0,
        }
    }
}

/// The arguments that an RMSNorm kernel takes in addition to a [`Call`](crate::Call). The `count`
/// of the `Call` is the number of elements in the input. All addresses are valid on this rank's
/// device.
///
/// Fields that are not addresses must have the same values on all ranks. The residuals of all ranks
/// must have the same content, and the weights too.
#[derive(Clone, Copy, Debug, PartialEq, KernelArg)]
#[repr(C)]
pub struct Norm {
    /// Address of the residual, which is as long as the input. The kernel replaces the residual by
    /// `x`, the sum of the reduced input and the residual. The residual must not overlap any other
    /// operand.
    pub residual: u64,
    /// Address of the weight vector, by which each normalised row is multiplied. The vector is as
    /// long as a row.
    pub weight: u64,
    /// Address of an array of `f32` to which the kernel writes the quantisation scale of each row.
    /// If the address is 0, all rows have the same scale, and
    /// [`inverse_scale`](Self::inverse_scale) holds the inverse of that scale. Used only for
    /// quantised results.
    pub scales: u64,
    /// Number of rows of the input.
    pub rows: u64,
    /// Number of 16-byte lines in a row, at least 1.
    pub row_lines: u64,
    /// The number that is added to the mean of the squares of a row. Must be positive and finite.
    pub epsilon: f32,
    /// The inverse of the scale of all rows, used if `scales` is 0. Results are multiplied by this
    /// factor before they are quantised.
    pub inverse_scale: f32,
    /// The element type of the result, as the number of an [`Output`].
    pub output: u32,
    /// Explicit padding, always 0.
    pub reserved: u32,
}

/// Smallest absolute value from which the quantisation scale of a row is computed. The scale is
/// computed from the largest absolute value in the row. If that value is smaller than this
/// constant, this constant replaces it. So the scale of a row of zeros is not 0.
pub const SMALLEST_SCALED: f32 = 1.0 / 512.0;

/// Returns the number of 16-byte lines in the part of a row that each rank reduces with
/// [`Algorithm::TwoShot`]. The parts of the last ranks may be shorter.
pub const fn part_lines(row_lines: u64, ranks: u32) -> u64 {
    row_lines.div_ceil(ranks as u64)
}

/// Returns the size in bytes of each of the two banks of a staging area. A kernel needs banks of
/// this size for `rows` rows of `row_lines` 16-byte lines.
pub const fn bank_bytes(algorithm: Algorithm, rows: u64, row_lines: u64, ranks: u32) -> u64 {
    let lines = match algorithm {
        Algorithm::None => 0,
        Algorithm::OneShot => rows * row_lines * ranks as u64,
        Algorithm::TwoShot => rows * (part_lines(row_lines, ranks) * ranks as u64 + row_lines),
    };
    lines * LINE_BYTES as u64
}

/// Returns the minimum length of a row for [`Algorithm::TwoShot`], in 16-byte lines. In a row of at
/// least this length, every rank has a part to reduce. So each rank sends at least one line to
/// every other rank.
pub const fn two_shot_min_lines(ranks: u32) -> u64 {
    ranks as u64 * ranks as u64
}
