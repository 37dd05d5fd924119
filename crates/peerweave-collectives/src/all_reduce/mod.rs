//! all_reduce: every rank gets the reduction of all inputs.

mod chunked;
mod entries;
mod one_shot;
mod two_shot;

use crate::line::{Lines, has_arrived};
use crate::{Call, LINE_BYTES};
use peerweave_device::gpu::{self, Vector};
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

pub use chunked::{FLAG_BYTES, ring_bytes};
pub use entries::*;

/// The number of this thread in the grid, and the number of threads of the grid.
#[inline(always)]
fn position() -> (u64, u64) {
    let threads = u64::from(gpu::block_dim().x);
    let first = u64::from(gpu::block_idx().x) * threads + u64::from(gpu::thread_idx().x);
    (first, u64::from(gpu::grid_dim().x) * threads)
}

/// Waits for one line of each rank below `ranks` but this one, whose line is `own`. Line `r` is
/// number `first + r * stride` of `lines`.
///
/// Every look reads `W` lines, without a branch between them: that of the last rank again where
/// there are fewer ranks, and this rank's own, which nobody writes.
#[inline(always)]
fn await_lines<const W: usize>(
    ctx: &Context,
    call: &Call,
    ranks: u32,
    lines: Lines,
    first: u64,
    stride: u64,
    own: Vector,
) -> Result<[Vector; W], Failed> {
    let look = || {
        let rank = |index: usize| (index as u32).min(ranks - 1);
        let mut found: [Vector; W] = core::array::from_fn(|index| lines.look(first + u64::from(rank(index)) * stride));
        let mut all = true;
        for (index, line) in found.iter_mut().enumerate() {
            let is_own = rank(index) == call.rank;
            all &= is_own | has_arrived(*line, call.sentinel);
            if is_own {
                *line = own;
            }
        }
        all.then_some(found)
    };
    ctx.poll(KernelOp::AllReduce, look, || {
        call.pe_of(missing(lines, first, stride, ranks, call.rank, call.sentinel[0], call.sentinel[1]))
    })
}

/// The first rank whose line has not arrived.
#[cold]
#[inline(never)]
fn missing(lines: Lines, first: u64, stride: u64, ranks: u32, me: u32, low: u64, high: u64) -> u32 {
    let is_missing = |rank: &u32| *rank != me && !has_arrived(lines.look(first + u64::from(*rank) * stride), [low, high]);
    (0..ranks).find(is_missing).unwrap_or(me)
}

/// Puts the sentinel back into the lines that [`await_lines`] has read.
#[inline(always)]
fn put_back<const W: usize>(call: &Call, ranks: u32, lines: Lines, first: u64, stride: u64) {
    for rank in 0..W {
        if (rank as u32) < ranks && rank as u32 != call.rank {
            lines.push(first + rank as u64 * stride, call.sentinel);
        }
    }
}

/// The lines of a bank of the area `k` ranks behind this one.
///
/// # Safety
/// The call is one whose areas have two banks of [`Call::bank_bytes`]; `epoch` is the one of the
/// launch.
#[inline(always)]
unsafe fn bank(call: &Call, k: u32, epoch: u64) -> Lines {
    // SAFETY: the caller promises the bank.
    unsafe { Lines::at(call.area_behind(k) + (epoch & 1) * call.bank_bytes) }
}

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
