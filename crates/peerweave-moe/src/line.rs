//! Lines of 16 bytes. There are two kinds: lines of operands, which one kernel reads or writes, and
//! lines that ranks send to each other. The receiver can tell from the content of a sent line
//! whether the line has arrived.

use crate::layout::Exchange;
use crate::piece;
use peerweave_device::gpu::{self, Vector};
use peerweave_device::lines::{Lines, has_arrived};
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

/// Maximum number of lines in a batch. On GPUs, a thread starts the accesses to all lines of a
/// batch before it waits for any of these accesses. On the host, batches are larger, because a
/// thread looks up the row of a token once for each batch.
pub(crate) const BATCH: usize = if cfg!(target_arch = "nvptx64") { 4 } else { 64 };

#[inline(always)]
fn pointer<T>(address: u64) -> *mut T {
    core::ptr::with_exposed_provenance_mut(address as usize)
}

/// Up to [`BATCH`] lines of 16 bytes that one thread moves together. The lines belong to one row,
/// such as the elements of one token. The distance from each line to the next is the same.
#[derive(Clone, Copy)]
pub(crate) struct Batch {
    first: u64,
    step: u64,
    count: usize,
}

impl Batch {
    /// Converts the index of a line in the batch to the index of this line in its row.
    #[inline(always)]
    fn line(self, index: usize) -> u64 {
        self.first + index as u64 * self.step
    }

    /// Calls the closure once for each 16-byte line of the batch. The argument is the index of the
    /// line in the batch.
    #[inline(always)]
    pub(crate) fn each(self, mut with: impl FnMut(usize)) {
        let mut if_exists = |index| {
            if index < self.count {
                with(index);
            }
        };
        if cfg!(target_arch = "nvptx64") {
            // Written out, because the compiler does not unroll a loop with a long body. Without
            // constant indices the lines would not stay in registers.
            const { assert!(!cfg!(target_arch = "nvptx64") || BATCH == 4) };
            if_exists(0);
            if_exists(1);
            if_exists(2);
            if_exists(3);
        } else {
            (0..BATCH).for_each(if_exists);
        }
    }

    /// Returns whether this thread accesses the lines of the batch as one range of memory. The
    /// result is true on the host if each block has only one thread. If a block on the host has
    /// several threads, each thread accesses one line at a time, and lets other threads run before
    /// each line. In this way, tests find races among the threads.
    #[inline(always)]
    pub(crate) fn is_piece(self) -> bool {
        !cfg!(target_arch = "nvptx64") && self.step == 1
    }

    /// Returns the part of `lines` that holds the lines of this batch. These are the first elements
    /// of the array.
    #[inline(always)]
    pub(crate) fn piece(self, lines: &[Vector; BATCH]) -> &[Vector] {
        &lines[..self.count]
    }

    /// Returns the part of `lines` that holds the lines of this batch, like [`Self::piece`], but
    /// for writing.
    #[inline(always)]
    pub(crate) fn piece_mut(self, lines: &mut [Vector; BATCH]) -> &mut [Vector] {
        &mut lines[..self.count]
    }
}

/// Divides the lines with the indices from 0 to `lines - 1` among the threads of the block. The
/// lines of this thread form batches. Calls `each` for every batch of this thread.
#[inline(always)]
pub(crate) fn in_batches(lines: u64, mut each: impl FnMut(Batch) -> Result<(), Failed>) -> Result<(), Failed> {
    let step = u64::from(gpu::block_threads());
    let mut first = u64::from(gpu::thread_rank());
    while first < lines {
        each(Batch { first, step, count: (lines - first).div_ceil(step).min(BATCH as u64) as usize })?;
        first += step * BATCH as u64;
    }
    Ok(())
}

/// Writes the lines of a batch to the row that begins at line `row` of `lines`.
#[inline(always)]
pub(crate) fn push_batch(lines: Lines, row: u64, batch: Batch, values: &[Vector; BATCH]) {
    if batch.is_piece() {
        // SAFETY: the caller of `Lines::at` guaranteed the lines.
        unsafe { piece::store(lines.from(row + batch.first).address(), batch.piece(values)) };
    } else {
        batch.each(|index| lines.push(row + batch.line(index), values[index]));
    }
}

/// Waits until the data of a line has arrived. Then writes `sentinel` to the line, so that a later
/// call can wait for new data, and returns the data. `sentinel` is the content of a line whose data
/// has not arrived.
///
/// # Errors
/// If the data has not arrived before the deadline. The failure names the PE with the number that
/// `sender` returns: the PE that should have sent the data.
#[inline(always)]
pub(crate) fn take(lines: Lines, ctx: &Context, sentinel: Vector, line: u64, sender: impl Fn() -> u32) -> Result<Vector, Failed> {
    let look = || Some(lines.look(line)).filter(|found| has_arrived(*found, sentinel));
    let found = ctx.poll(KernelOp::AllToAll, look, sender)?;
    lines.push(line, sentinel);
    Ok(found)
}

/// Waits until the data of all lines in a batch has arrived, and writes the data to `found`. Then
/// writes `sentinel` to the lines, so that a later call can wait for new data. The batch belongs to
/// the row that begins at line `row` of `lines`.
///
/// # Errors
/// If the data of a line has not arrived before the deadline. The failure names the PE with the
/// number that `sender` returns: the PE that should have sent the data.
#[inline(always)]
pub(crate) fn take_batch(
    lines: Lines,
    ctx: &Context,
    sentinel: Vector,
    row: u64,
    batch: Batch,
    found: &mut [Vector; BATCH],
    sender: impl Fn() -> u32,
) -> Result<(), Failed> {
    let start = lines.from(row + batch.first).address();
    let look = || {
        let mut all = true;
        if batch.is_piece() {
            let found = batch.piece_mut(found);
            // SAFETY: the caller of `Lines::at` guaranteed the lines.
            unsafe { piece::load(start, found) };
            all = have_arrived(found, sentinel);
        } else {
            batch.each(|index| {
                found[index] = lines.look(row + batch.line(index));
                all &= has_arrived(found[index], sentinel);
            });
        }
        all.then_some(())
    };
    ctx.poll(KernelOp::AllToAll, look, sender)?;
    if batch.is_piece() {
        // SAFETY: as above.
        unsafe { piece::store(start, batch.piece(&[sentinel; BATCH])) };
    } else {
        batch.each(|index| lines.push(row + batch.line(index), sentinel));
    }
    Ok(())
}

/// Returns whether the data of all lines has arrived. `lines` has the contents of the lines, and
/// `sentinel` is the content of a line whose data has not arrived.
#[inline(always)]
fn have_arrived(lines: &[Vector], sentinel: Vector) -> bool {
    piece::vectorised(|| lines.iter().fold(true, |all, line| all & has_arrived(*line, sentinel)))
}

/// Returns the two 64-bit halves of a line.
#[inline(always)]
pub(crate) fn halves(line: u128) -> Vector {
    [line as u64, (line >> 64) as u64]
}

/// An operand of a call, in this PE's symmetric memory. Kernels access the operand in whole lines
/// of 16 bytes.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    address: u64,
    lines: u64,
}

impl Operand {
    #[inline(always)]
    pub(crate) fn new(ctx: &Context, of: SymSlice<u128>) -> Self {
        Self { address: ctx.local(of).address(), lines: of.len() as u64 }
    }

    /// Reads the line with the index `line`. Returns zeros if the operand ends before this line.
    #[inline(always)]
    fn read(self, line: u64) -> Vector {
        if line >= self.lines {
            return [0; 2];
        }
        let from = self.address + 16 * line;
        // SAFETY: the line is in symmetric memory of this PE, which the launch keeps allocated.
        unsafe {
            if cfg!(target_arch = "nvptx64") {
                gpu::load_vector_global(pointer(from))
            } else {
                gpu::load_line_relaxed(pointer(from)) // does not yield to other threads
            }
        }
    }

    /// Reads the lines of a batch from the row that begins at line `row` of the operand.
    #[inline(always)]
    pub(crate) fn read_batch(self, row: u64, batch: Batch, values: &mut [Vector; BATCH]) {
        if batch.is_piece() {
            self.read_piece(row + batch.first, batch.piece_mut(values));
        } else {
            batch.each(|index| values[index] = self.read(row + batch.line(index)));
        }
    }

    /// Reads consecutive 16-byte lines of the operand, starting with line `first`. Reads nothing
    /// after the end of the operand.
    #[inline(always)]
    fn read_piece(self, first: u64, into: &mut [Vector]) {
        let count = self.lines.saturating_sub(first).min(into.len() as u64) as usize;
        // SAFETY: the lines are in symmetric memory of this PE, which the launch keeps allocated.
        unsafe { piece::load(self.address + 16 * first, &mut into[..count]) };
    }

    /// Writes the line with the index `line`. Does nothing if the operand ends before this line.
    #[inline(always)]
    fn write(self, line: u64, value: Vector) {
        if line >= self.lines {
            return;
        }
        let to = self.address + 16 * line;
        // SAFETY: as in `read`.
        unsafe {
            if cfg!(target_arch = "nvptx64") {
                gpu::store_vector_global(pointer(to), value);
            } else {
                gpu::store_line_relaxed(pointer(to), value);
            }
        }
    }

    /// Writes the lines of a batch to the row that begins at line `row` of the operand.
    #[inline(always)]
    pub(crate) fn write_batch(self, row: u64, batch: Batch, values: &[Vector; BATCH]) {
        if batch.is_piece() {
            self.write_piece(row + batch.first, batch.piece(values), false);
        } else {
            batch.each(|index| self.write(row + batch.line(index), values[index]));
        }
    }

    /// Writes consecutive lines. Writes nothing after the end of the operand. If `streams` is true,
    /// the writes bypass the caches.
    #[inline(always)]
    fn write_piece(self, first: u64, from: &[Vector], streams: bool) {
        let count = self.lines.saturating_sub(first).min(from.len() as u64) as usize;
        let to = self.address + 16 * first;
        // SAFETY: as in `read_piece`.
        unsafe {
            if streams {
                piece::store_streaming(to, &from[..count]);
            } else {
                piece::store(to, &from[..count]);
            }
        }
    }

    /// Prefetches the lines of a batch in the row that begins at line `row` of the operand.
    #[inline(always)]
    pub(crate) fn prefetch_batch(self, row: u64, batch: Batch) {
        if batch.is_piece() {
            piece::prefetch(self.address + 16 * (row + batch.first), batch.count);
        }
    }
}

/// Tokens, and the scales of the tokens if there are scales. The row of a token consists of the
/// lines of the token, followed by the lines of the token's scales.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    tokens: Operand,
    scales: Operand,
    token_lines: u64,
    scale_lines: u64,
    /// Whether writes to `tokens` bypass the caches. Always `false` on GPUs.
    streams: bool,
}

/// Threshold, in bytes, for writes of tokens on the host. The writes bypass the caches if all ranks
/// together write at least this number of bytes in a call. The bytes of scales do not count.
const STREAMING_BYTES: u64 = 16 << 20;

impl Rows {
    /// Creates a view of rows whose tokens are in `tokens`, and whose scales are in `scales`. `all`
    /// is the number of rows that all ranks together write in the current call. On the host, the
    /// writes bypass the caches if this number is large. On GPUs, and if the rows are only read,
    /// callers pass 0.
    #[inline(always)]
    pub(crate) fn new(ctx: &Context, exchange: &Exchange, tokens: SymSlice<u128>, scales: SymSlice<u128>, all: u64) -> Self {
        Self {
            streams: all * u64::from(exchange.token_lines) * 16 >= STREAMING_BYTES,
            tokens: Operand::new(ctx, tokens),
            scales: Operand::new(ctx, scales),
            token_lines: u64::from(exchange.token_lines),
            scale_lines: u64::from(exchange.scale_lines),
        }
    }

    /// Returns how many lines of a batch belong to the token itself. The remaining lines of the
    /// batch belong to the token's scales. The lines of the batch must be consecutive
    /// ([`Batch::is_piece`]).
    #[inline(always)]
    fn of_token(self, batch: Batch) -> usize {
        self.token_lines.saturating_sub(batch.first).min(batch.count as u64) as usize
    }

    /// Returns the index in [`Self::scales`] of the first scale line that a batch contains. `row`
    /// is the index of the row to which the batch belongs. The lines of the batch must be
    /// consecutive ([`Batch::is_piece`]).
    #[inline(always)]
    fn first_scale(self, row: u64, batch: Batch) -> u64 {
        row * self.scale_lines + batch.first.saturating_sub(self.token_lines)
    }

    /// Ensures that this thread's earlier writes by [`Self::write_batch`] become visible before its
    /// later writes. Only writes that bypass the caches need this call.
    #[inline(always)]
    pub(crate) fn end(self) {
        if !cfg!(target_arch = "nvptx64") && self.streams {
            piece::end_streaming();
        }
    }

    /// Reads the lines of a batch from the row with the index `row`. Writes their content to
    /// `values`.
    #[inline(always)]
    pub(crate) fn read_batch(self, row: u64, batch: Batch, values: &mut [Vector; BATCH]) {
        if batch.is_piece() {
            let (token, scales) = batch.piece_mut(values).split_at_mut(self.of_token(batch));
            self.tokens.read_piece(row * self.token_lines + batch.first, token);
            self.scales.read_piece(self.first_scale(row, batch), scales);
        } else {
            batch.each(|index| {
                let line = batch.line(index);
                values[index] = if line < self.token_lines {
                    self.tokens.read(row * self.token_lines + line)
                } else {
                    self.scales.read(row * self.scale_lines + line - self.token_lines)
                };
            });
        }
    }

    /// Writes `values`, the new content of the lines of a batch, to the row with the index `row`.
    #[inline(always)]
    pub(crate) fn write_batch(self, row: u64, batch: Batch, values: &[Vector; BATCH]) {
        if batch.is_piece() {
            let (token, scales) = batch.piece(values).split_at(self.of_token(batch));
            self.tokens.write_piece(row * self.token_lines + batch.first, token, self.streams);
            self.scales.write_piece(self.first_scale(row, batch), scales, false);
        } else {
            batch.each(|index| {
                let line = batch.line(index);
                if line < self.token_lines {
                    self.tokens.write(row * self.token_lines + line, values[index]);
                } else {
                    self.scales.write(row * self.scale_lines + line - self.token_lines, values[index]);
                }
            });
        }
    }
}
