//! Waits for the lines of all ranks in a bank.

use crate::Call;
use crate::line::{Lines, has_arrived};
use peerweave_device::gpu::{self, Vector};
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

/// The number of this thread in the grid, and the number of threads of the grid.
#[inline(always)]
pub(crate) fn position() -> (u64, u64) {
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
#[expect(clippy::too_many_arguments, reason = "all are inlined")]
pub(crate) fn await_lines<const W: usize>(
    ctx: &Context,
    operation: KernelOp,
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
    ctx.poll(operation, look, || call.pe_of(missing(lines, first, stride, ranks, call.rank, call.sentinel[0], call.sentinel[1])))
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
pub(crate) fn put_back<const W: usize>(call: &Call, ranks: u32, lines: Lines, first: u64, stride: u64) {
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
pub(crate) unsafe fn bank(call: &Call, k: u32, epoch: u64) -> Lines {
    // SAFETY: the caller promises the bank.
    unsafe { Lines::at(call.area_behind(k) + (epoch & 1) * call.bank_bytes) }
}
