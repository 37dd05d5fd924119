//! RMSNorm of one row. All threads of a block compute one row together.

use super::{Norm, Output, SMALLEST_SCALED};
use crate::Call;
use crate::epoch::pointer;
use crate::line::reduce::Class;
use crate::line::{LINE_BYTES, Operand, per_line};
use peerweave_device::gpu::{self, Piece, Vector};
use peerweave_device::prelude::*;
use peerweave_types::{bf16, f16};

/// A float type whose elements are normalised in `f32`. The functions take `lanes`, the elements of
/// one 16-byte line as `f32`.
pub(super) trait Real: Class<Wide = f32> {
    /// Folds the elements in order, as [`Iterator::fold`] does: starts with `start`, replaces the
    /// state by `with(state, element)` for each element, and returns the last state.
    fn fold(lanes: Self::Lanes, start: f32, with: impl Fn(f32, f32) -> f32) -> f32;
    /// Returns the elements, each multiplied by `factor`.
    fn scale(lanes: Self::Lanes, factor: f32) -> Self::Lanes;
    /// Converts each element of the line to one byte, and returns these bytes. The byte of the
    /// first element is the lowest. `pair` converts two consecutive elements to two bytes.
    fn bytes(lanes: Self::Lanes, pair: impl Fn([f32; 2]) -> u16) -> u64;
}

macro_rules! real {
    ($($t:ty: $n:literal;)*) => {$(
        impl Real for $t {
            #[inline(always)]
            fn fold(lanes: Self::Lanes, start: f32, with: impl Fn(f32, f32) -> f32) -> f32 {
                let mut state = start;
                for k in 0..$n {
                    state = with(state, lanes[k]);
                }
                state
            }

            #[inline(always)]
            fn scale(lanes: Self::Lanes, factor: f32) -> Self::Lanes {
                core::array::from_fn(|k| lanes[k] * factor)
            }

            #[inline(always)]
            fn bytes(lanes: Self::Lanes, pair: impl Fn([f32; 2]) -> u16) -> u64 {
                (0..$n / 2).fold(0, |word, k| word | u64::from(pair([lanes[2 * k], lanes[2 * k + 1]])) << (16 * k))
            }
        }
    )*};
}

real! {
    f16: 8;
    bf16: 8;
    f32: 4;
}

/// Maximum number of warps in a block.
const WARPS: usize = 16;

/// The operands of an RMSNorm kernel. Each operand consists of whole 16-byte lines.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    pub(super) send: Operand<true>,
    pub(super) residual: Operand<true>,
    weight: Operand<true>,
    recv: Operand<true>,
}

impl Operands {
    /// Returns the operands that `call` and `norm` describe.
    ///
    /// # Safety
    /// The fields of `call` and `norm` have the properties that their documentation states.
    #[inline(always)]
    pub(super) unsafe fn new<T: Class>(call: &Call, norm: &Norm) -> Self {
        // SAFETY: the caller guarantees the properties of the arguments.
        unsafe {
            Self {
                send: Operand::new(call.send, call.count),
                residual: Operand::new(norm.residual, call.count),
                weight: Operand::new(norm.weight, norm.row_lines * per_line::<T>() as u64),
                recv: Operand::new(call.recv, call.count),
            }
        }
    }
}

/// Returns the index of this thread in its block, and the number of threads of the block.
#[inline(always)]
pub(super) fn threads() -> (u64, u64) {
    (u64::from(gpu::thread_idx().x), u64::from(gpu::block_dim().x))
}

/// Calls the function `with` once for each row that this block handles. The argument is the index
/// of the row. If a call returns `false`, the remaining rows are omitted.
#[inline(always)]
pub(super) fn each_row(norm: &Norm, mut with: impl FnMut(u64) -> bool) {
    let mut row = u64::from(gpu::block_idx().x);
    while row < norm.rows {
        if !with(row) {
            return;
        }
        row += u64::from(gpu::grid_dim().x);
    }
}

/// Calls the function `with` once for each index that this thread handles. The threads of the block
/// divide the indices from 0 to `n - 1` among themselves.
#[inline(always)]
pub(super) fn each_index(n: u64, mut with: impl FnMut(u64)) {
    let (mut index, step) = threads();
    while index < n {
        with(index);
        index += step;
    }
}

/// Returns a line of `x`: the sum of two lines, added element by element. `sum` is a line of the
/// reduced input, and `residual` is a line of the residual.
#[inline(always)]
pub(super) fn added<T: Class>(sum: Vector, residual: Vector) -> Vector {
    T::pack(T::plus(T::unpack(sum), T::unpack(residual)))
}

/// The values that are computed over a whole row before the row can be normalised and quantised.
#[derive(Clone, Copy)]
struct Sums {
    /// Sum of the squares of `x`.
    squares: f32,
    /// Largest absolute value of the products of `x` and the weight.
    largest: f32,
}

impl Sums {
    #[inline(always)]
    fn add<T: Real>(&mut self, x: Vector, weight: Vector) {
        let x = T::unpack(x);
        self.squares = T::fold(T::times(x, x), self.squares, |sum, square| sum + square);
        self.largest = T::fold(T::times(x, T::unpack(weight)), self.largest, |most, value| most.max(value.abs()));
    }

    /// Combines the [`Sums`] of all threads of the block, and returns the result on every thread.
    /// If `failed` is true on any thread, returns `None` on every thread. All threads of the block
    /// must call this method. The lowest bit of `parity` must differ between consecutive calls,
    /// which then use different shared memory. The order of the additions depends only on the
    /// number of threads.
    #[inline(always)]
    fn of_block(self, parity: u64, failed: bool) -> Option<Self> {
        let all = peerweave_device::shared_array!(SUMS: [u32; 2 * 3 * WARPS]);
        let start = (parity & 1) as usize * 3 * WARPS;
        let of = |value: f32, by: u32| f32::from_bits(gpu::shuffle_xor(u32::MAX, value.to_bits(), by));
        let Self { mut squares, mut largest } = self;
        let failed = gpu::vote_ballot(u32::MAX, failed);
        let mut by = 16;
        while by > 0 {
            squares += of(squares, by);
            largest = largest.max(of(largest, by));
            by /= 2;
        }
        let thread = gpu::thread_idx().x as usize;
        if thread.is_multiple_of(32) {
            let warp = thread / 32;
            all.write(start + warp, squares.to_bits());
            all.write(start + WARPS + warp, largest.to_bits());
            all.write(start + 2 * WARPS + warp, failed);
        }
        gpu::sync_threads();
        let (mut sums, mut failed) = (Self { squares: 0.0, largest: 0.0 }, 0);
        for warp in 0..gpu::block_dim().x as usize / 32 {
            sums.squares += f32::from_bits(all.read(start + warp));
            sums.largest = sums.largest.max(f32::from_bits(all.read(start + WARPS + warp)));
            failed |= all.read(start + 2 * WARPS + warp);
        }
        (failed == 0).then_some(sums)
    }
}

/// Returns 1/√value. The result is rounded to nearest, except for about one in several million
/// values. Positive, finite values give a finite number. Infinity gives 0.
#[inline(always)]
fn inverse_square_root(value: f32) -> f32 {
    if value.is_nan() || value == f32::INFINITY {
        return 1.0 / value;
    }
    // The first guess has a relative error of 3 %. Each step of Newton's method roughly squares the
    // error.
    let mut guess = f32::from_bits(0x5f37_59df - (value.to_bits() >> 1));
    for _ in 0..3 {
        guess *= 1.5 - 0.5 * value * guess * guess;
    }
    let (value, guess) = (f64::from(value), f64::from(guess));
    (guess * (1.5 - 0.5 * value * guess * guess)) as f32
}

/// Normalises a row of `x`. Stores the row in the residual, and the normalised row in the result.
/// `get` takes the index of a line in the row, and returns that line of `x`. All threads of the
/// block must call this function for the same row. The lowest bit of `parity` must differ between
/// consecutive rows. If `get` fails or `failed` is true on any thread, returns `false` on all
/// threads. In this case, the context's status already holds the failure.
#[inline(always)]
pub(super) fn normalise<T: Real>(
    norm: &Norm,
    operands: &Operands,
    row: u64,
    parity: u64,
    failed: bool,
    mut get: impl FnMut(u64) -> Result<Vector, Failed>,
) -> bool {
    let (thread, step) = threads();
    let (lines, start) = (norm.row_lines, row * norm.row_lines);
    let mut sums = Sums { squares: 0.0, largest: 0.0 };
    let mut failed = failed;
    // `last` and `before` are the last line of this thread and the line before that line, each with
    // its weight. One loop handles all lines. If the code of the loop were repeated, the compiler
    // would turn it into a function and keep its variables in memory.
    let nothing = ([0; 2], [0; 2]);
    let (mut last, mut before) = (nothing, nothing);
    let mut index = thread;
    while index < lines && !failed {
        let weight = operands.weight.read_whole(index);
        match get(index) {
            Ok(x) => {
                operands.residual.write_whole(start + index, x);
                sums.add::<T>(x, weight);
                (before, last) = (last, (x, weight));
            }
            Err(_) => failed = true,
        }
        index += step;
    }
    let Some(sums) = sums.of_block(parity, failed) else { return false };
    let elements = (lines * per_line::<T>() as u64) as f32;
    let factor = inverse_square_root(sums.squares / elements + norm.epsilon);
    let inverse_scale = if norm.scales == 0 { norm.inverse_scale } else { scale_of_row(norm, row, sums.largest * factor) };
    let mut index = thread;
    while index < lines {
        let (x, weight) = if index + step >= lines {
            last
        } else if index + 2 * step >= lines {
            before
        } else {
            // This thread has written the line of `x`.
            (operands.residual.read_whole(start + index), operands.weight.read_whole(index))
        };
        let y = T::scale(T::times(T::unpack(x), T::unpack(weight)), factor);
        if norm.output == Output::Same as u32 {
            operands.recv.write_whole(start + index, T::pack(y));
        } else {
            store_quantised::<T>(norm, operands.recv, start + index, T::scale(y, inverse_scale));
        }
        index += step;
    }
    true
}

/// Computes the quantisation scale of a row whose largest absolute value is `largest`, and stores
/// the scale. Returns the inverse of the scale.
#[inline(always)]
fn scale_of_row(norm: &Norm, row: u64, largest: f32) -> f32 {
    let most = if norm.output == Output::F8E4M3 as u32 { Output::F8E4M3.largest() } else { Output::I8.largest() };
    let scale = largest.max(SMALLEST_SCALED) / most;
    if gpu::thread_idx().x == 0 {
        // SAFETY: the launch guarantees one element for each row.
        unsafe { u32::store_global(pointer::<u32>(norm.scales).wrapping_add(row as usize), scale.to_bits()) };
    }
    1.0 / scale
}

/// Quantises each element of a line to one byte, and stores the bytes. The elements in `y` have
/// already been multiplied by the inverse scale.
#[inline(always)]
fn store_quantised<T: Real>(norm: &Norm, recv: Operand<true>, line: u64, y: T::Lanes) {
    let bytes = if norm.output == Output::F8E4M3 as u32 {
        T::bytes(y, gpu::f8e4m3_pair)
    } else {
        T::bytes(y, |[low, high]| u16::from(nearest(low)) | u16::from(nearest(high)) << 8)
    };
    let to = recv.address() + line * per_line::<T>() as u64;
    const { assert!(per_line::<T>() == 8 || per_line::<T>() == 4 && LINE_BYTES == 16) };
    // SAFETY: the launch guarantees one byte for each element of the input, aligned to lines.
    unsafe {
        if per_line::<T>() == 8 {
            u64::store_global(pointer(to), bytes);
        } else {
            u32::store_global(pointer(to), bytes as u32);
        }
    }
}

/// Rounds `value` to a signed 8-bit integer, and returns the bits of that integer. Ties round to
/// even. Values out of range saturate.
#[expect(clippy::manual_clamp, reason = "for NaN, `max` returns -128, but `clamp` would return NaN")]
#[inline(always)]
fn nearest(value: f32) -> u8 {
    // The unit in the last place of this number is 1, so adding the number rounds to an integer.
    const ROUNDER: f32 = 12_582_912.0;
    (value.max(-128.0).min(127.0) + ROUNDER).to_bits() as u8
}
