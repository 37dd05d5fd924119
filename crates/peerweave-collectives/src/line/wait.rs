//! Functions that wait until the lines that other ranks send have arrived in this rank's staging
//! area.

use crate::Call;
use crate::line::reduce::{Class, finish, fold_lines};
use crate::line::{Lines, has_arrived};
use peerweave_device::gpu::{self, Vector};
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

/// Returns the index of this thread in the grid, and the number of threads in the grid.
#[inline(always)]
pub(crate) fn position() -> (u64, u64) {
    let threads = u64::from(gpu::block_dim().x);
    let first = u64::from(gpu::block_idx().x) * threads + u64::from(gpu::thread_idx().x);
    (first, u64::from(gpu::grid_dim().x) * threads)
}

/// One 16-byte line from each rank. A kernel computes one line of the result from these lines. The
/// lines are at equal distances in a bank, which is the part of a staging area that one launch
/// uses.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) lines: Lines,
    /// Index in `lines` of the line from rank 0.
    pub(crate) first: u64,
    /// Distance from the line of one rank to the line of the next rank, in lines.
    pub(crate) stride: u64,
    /// Number of ranks that have a line in this row: ranks 0 to `ranks - 1`.
    pub(crate) ranks: u32,
}

impl Row {
    /// Returns the row that lies `step` lines after this row: each of its lines is `step` lines
    /// after the line of the same rank.
    #[inline(always)]
    pub(crate) fn after(self, step: u64) -> Self {
        Self { first: self.first + step, ..self }
    }

    /// Returns the index in `lines` of the line from rank `rank`.
    #[inline(always)]
    fn at(self, rank: u32) -> u64 {
        self.first + u64::from(rank) * self.stride
    }
}

/// Waits for the lines of a row in groups of `W` ranks. A row has one line from each rank. After
/// all lines of a group have arrived, calls `found` with the first rank of the group and the lines
/// of the group. `own` replaces the line of this rank, because no rank writes that line.
///
/// The groups are limited to `W` ranks, because the addresses of more lines do not fit in
/// registers. If `MORE` is false, there is only one group.
#[inline(always)]
pub(crate) fn await_lines<const W: usize, const MORE: bool>(
    ctx: &Context,
    operation: KernelOp,
    call: &Call,
    row: Row,
    own: Vector,
    mut found: impl FnMut(u32, [Vector; W]),
) -> Result<(), Failed> {
    let mut base = 0;
    loop {
        found(base, await_group::<W>(ctx, operation, call, row, own, base)?);
        base += W as u32;
        if !MORE || base >= row.ranks {
            return Ok(());
        }
    }
}

/// Waits until all lines of a row have arrived. A row has one line from each rank. Combines the
/// lines element by element with the reduction [`Call::op`], in the order of ranks, and returns the
/// resulting line. `own` replaces the line of this rank, because no rank writes that line.
#[inline(always)]
pub(crate) fn await_sum<T: Class, const W: usize, const MORE: bool, const PLAIN: bool>(
    ctx: &Context,
    operation: KernelOp,
    call: &Call,
    row: Row,
    own: Vector,
) -> Result<Vector, Failed> {
    let mut state = T::unpack([0; 2]);
    await_lines::<W, MORE>(ctx, operation, call, row, own, |base, lines| {
        state = fold_lines::<T, W, PLAIN>(call.op, row.ranks - base, &lines, (MORE && base > 0).then_some(state));
    })?;
    Ok(finish::<T, PLAIN>(call.op, row.ranks, state))
}

/// Waits until the lines of ranks `base` to `base + W - 1` in `row` have arrived, and returns these
/// lines. A row has one line from each rank.
///
/// Each poll reads `W` lines without a branch between the loads. In place of a rank that does not
/// exist, the poll reads the line of the last rank again. The poll also reads this rank's own line,
/// which no rank writes, and replaces this line by `own`.
#[inline(always)]
fn await_group<const W: usize>(
    ctx: &Context,
    operation: KernelOp,
    call: &Call,
    row: Row,
    own: Vector,
    base: u32,
) -> Result<[Vector; W], Failed> {
    let look = || {
        let rank = |index: usize| (base + index as u32).min(row.ranks - 1);
        let mut found: [Vector; W] = core::array::from_fn(|index| row.lines.look(row.at(rank(index))));
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
    let Row { lines, first, stride, ranks } = row;
    ctx.poll(operation, look, || {
        call.late_pe(missing(lines, first, stride, ranks, call.rank, call.sentinel[0], call.sentinel[1]))
    })
}

/// Waits until all lines of two rows have arrived, and returns the lines of both rows. A row has
/// one line from each rank. The first row is `row`, and the second row starts `step` lines after
/// `row`. `own` replaces the lines of this rank, because no rank writes these lines. Each poll
/// issues the loads of all lines before it tests a line. `W` must be at least the number of ranks.
#[inline(always)]
pub(crate) fn await_two_rows<const W: usize>(
    ctx: &Context,
    operation: KernelOp,
    call: &Call,
    row: Row,
    step: u64,
    own: [Vector; 2],
) -> Result<[[Vector; W]; 2], Failed> {
    let next = row.after(step);
    let rank = |index: usize| (index as u32).min(row.ranks - 1);
    let arrived = |mut lines: [Vector; W], own: Vector| {
        let mut all = true;
        for (index, line) in lines.iter_mut().enumerate() {
            let is_own = rank(index) == call.rank;
            all &= is_own | has_arrived(*line, call.sentinel);
            if is_own {
                *line = own;
            }
        }
        (all, lines)
    };
    let look = || {
        let first: [Vector; W] = core::array::from_fn(|index| row.lines.look(row.at(rank(index))));
        let second: [Vector; W] = core::array::from_fn(|index| row.lines.look(next.at(rank(index))));
        let (first, second) = (arrived(first, own[0]), arrived(second, own[1]));
        (first.0 & second.0).then_some([first.1, second.1])
    };
    let missing = |Row { lines, first, stride, ranks }: Row| {
        missing(lines, first, stride, ranks, call.rank, call.sentinel[0], call.sentinel[1])
    };
    let first_missing = || Some(missing(row)).filter(|rank| *rank != call.rank).unwrap_or_else(|| missing(next));
    ctx.poll(operation, look, || call.late_pe(first_missing()))
}

/// Returns the lowest rank other than `me` whose line has not arrived. `me` is this rank, which
/// sends no line to itself. Returns `me` if the lines of all other ranks have arrived.
#[cold]
#[inline(never)]
fn missing(lines: Lines, first: u64, stride: u64, ranks: u32, me: u32, low: u64, high: u64) -> u32 {
    let is_missing = |rank: &u32| *rank != me && !has_arrived(lines.look(first + u64::from(*rank) * stride), [low, high]);
    (0..ranks).find(is_missing).unwrap_or(me)
}

/// Writes the sentinel to the lines of a row, so that a later launch can wait for new data in these
/// lines. The sentinel is the content of a line whose data has not arrived ([`Call::sentinel`]).
/// The line of this rank is omitted, because no rank writes that line. Called after a function such
/// as [`await_lines`] has read the row.
#[inline(always)]
pub(crate) fn put_back<const W: usize, const MORE: bool>(call: &Call, row: Row) {
    let mut base = 0;
    loop {
        for index in 0..W as u32 {
            let rank = base + index;
            if rank < row.ranks && rank != call.rank {
                row.lines.push(row.at(rank), call.sentinel);
            }
        }
        base += W as u32;
        if !MORE || base >= row.ranks {
            return;
        }
    }
}

/// Returns the bank that the launch with the epoch `epoch` uses in the staging area of the rank `k`
/// places after this rank. A staging area has two banks of lines, which launches use alternately.
///
/// # Safety
/// The staging areas of the call have two banks of [`Call::bank_bytes`] bytes.
#[inline(always)]
pub(crate) unsafe fn bank(call: &Call, k: u32, epoch: u64) -> Lines {
    // SAFETY: the caller guarantees that the area has two banks.
    unsafe { Lines::at(call.area_after(k) + (epoch & 1) * call.bank_bytes) }
}
