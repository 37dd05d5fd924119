//! The two-shot algorithm of all_reduce. An input has one part for each rank. Rank `r` reduces part
//! `r` of all inputs, and pushes the reduced part to every rank. The kernel has three steps: push
//! the parts of the input, reduce one part, and copy the reduced parts that arrive.
//!
//! A thread handles the same lines of each part in all steps. So a thread waits only for the thread
//! with the same number on each rank. The result may overwrite the input, because one thread reads
//! a line of the input and later writes the same line of the result.
//!
//! In plain kernels ([`super::kernel`]) for up to 4 ranks, a thread waits for two lines of each
//! rank at a time. Loading two lines takes no longer than loading one.

use crate::Call;
use crate::line::push::push_to_banks;
use crate::line::reduce::{Class, outgoing, reduce};
use crate::line::wait::{Row, await_lines, await_sum, await_two_rows, position, put_back};
use crate::line::{Lines, Operand};
use peerweave_device::gpu::Vector;
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

/// The state of a thread of the two-shot kernel while it reduces lines and copies results. A bank
/// of a staging area holds one part from each rank, followed by the reduced part of each rank.
struct Thread<'a, const PLAIN: bool> {
    ctx: &'a Context,
    call: &'a Call,
    send: Operand<PLAIN>,
    recv: Operand<PLAIN>,
    /// This launch's bank in this rank's staging area. Every staging area has two banks, which
    /// launches use alternately.
    banks: Lines,
    /// Number of 16-byte lines of the input.
    lines: u64,
    /// Number of lines in a part of the input. The input has one part for each rank.
    part: u64,
    /// Index in the bank of the first line of the reduced parts. The unreduced parts lie before
    /// this line, so this index is also the number of lines in all unreduced parts.
    results: u64,
    /// Distance, in lines, between two consecutive lines that this thread handles.
    step: u64,
}

impl<const PLAIN: bool> Thread<'_, PLAIN> {
    /// Returns a line of this rank's input in the form in which the rank sends it. If the reduction
    /// is `PreMulSum`, the elements are multiplied by the scalar. Otherwise they are unchanged.
    #[inline(always)]
    fn outgoing<T: Class>(&self, line: u64) -> Vector {
        outgoing::<T, PLAIN>(self.call.op, self.call.scalar, self.send.read::<T>(line))
    }

    /// Returns the [`Row`] that starts at line `index` of the bank. The row has one line from each
    /// rank: line `index` from rank 0, and the line from each following rank [`Self::part`] lines
    /// later. From line [`Self::results`] on, the bank holds reduced lines.
    #[inline(always)]
    fn inputs(&self, index: u64) -> Row {
        Row { lines: self.banks, first: index, stride: self.part, ranks: self.call.ranks }
    }

    /// Pushes `result`, the reduced line number `line`, to ranks that are `base` to `base + W - 1`
    /// places after this rank. Omits this rank itself, and ranks that get no result.
    #[inline(always)]
    fn push<const W: usize>(&self, base: u32, line: u64, result: Vector) {
        let call = self.call;
        for k in base..base + W as u32 {
            if k > 0 && k < call.ranks && call.has_results(k) {
                // SAFETY: the bank of the epoch is at the same place in each area, and has room for
                // twice the lines of all parts.
                let there = unsafe { Lines::beside(self.banks, call.areas[0], call.area_after(k)) };
                there.from(self.results).push(line, result);
            }
        }
    }

    /// Reduces line `index` of this rank's part, and pushes the reduced line. If this rank gets the
    /// result, also writes the line to its own result.
    #[inline(always)]
    fn reduce_line<T: Class, const W: usize>(&self, index: u64, lines: &[Vector; W]) {
        let line = u64::from(self.call.rank) * self.part + index;
        let result = reduce::<T, W, PLAIN>(self.call.op, self.call.ranks, lines);
        self.push::<W>(0, line, result);
        if self.call.has_results(0) {
            self.recv.write::<T>(line, result);
        }
    }

    /// Reduces lines of this rank's part, and pushes the reduced lines. In each step, this thread
    /// handles two of its lines, starting with line `index` of the part. Stops when this thread has
    /// fewer than two lines left. Returns the index of its next line, which is outside of the part
    /// if no line is left.
    #[inline(always)]
    fn reduce_lines<T: Class, const W: usize>(&self, mut index: u64) -> Result<u64, Failed> {
        let part = u64::from(self.call.rank) * self.part;
        let end = self.part.min(self.lines.saturating_sub(part));
        while index + self.step < end {
            let (row, next) = (self.inputs(index), index + self.step);
            let own = [self.outgoing::<T>(part + index), self.outgoing::<T>(part + next)];
            let found = await_two_rows::<W>(self.ctx, KernelOp::AllReduce, self.call, row, self.step, own)?;
            self.reduce_line::<T, W>(index, &found[0]);
            self.reduce_line::<T, W>(next, &found[1]);
            put_back::<W, false>(self.call, row);
            put_back::<W, false>(self.call, self.inputs(next));
            index = next + self.step;
        }
        Ok(index)
    }

    /// Writes one reduced line of every other rank to the result. `lines[r]` comes from rank `r`,
    /// and is line `index` of part `r`.
    #[inline(always)]
    fn copy_line<T: Class, const W: usize>(&self, index: u64, lines: &[Vector; W]) {
        for (rank, value) in (0..).zip(lines) {
            if rank < self.call.ranks && rank != self.call.rank {
                self.recv.write::<T>(u64::from(rank) * self.part + index, *value);
            }
        }
    }

    /// Waits for reduced lines of the other ranks, and copies them to the result. In each step,
    /// this thread copies two of its lines of every part, starting with line `index` of the parts.
    /// Stops when the last part, which may be shorter, has fewer than two lines left for this
    /// thread. Returns the index of this thread's first line that has not been copied.
    #[inline(always)]
    fn copy_lines<T: Class, const W: usize>(&self, mut index: u64) -> Result<u64, Failed> {
        let end = self.lines.saturating_sub(u64::from(self.call.ranks - 1) * self.part);
        while index + self.step < end {
            let (row, next) = (self.inputs(self.results + index), index + self.step);
            let found = await_two_rows::<W>(self.ctx, KernelOp::AllReduce, self.call, row, self.step, [[0; 2]; 2])?;
            self.copy_line::<T, W>(index, &found[0]);
            self.copy_line::<T, W>(next, &found[1]);
            put_back::<W, false>(self.call, row);
            put_back::<W, false>(self.call, self.inputs(self.results + next));
            index = next + self.step;
        }
        Ok(index)
    }
}

/// Runs the two-shot kernel of all_reduce.
#[inline(always)]
pub(super) fn run<T: Class, const W: usize, const MORE: bool, const PLAIN: bool>(
    ctx: &Context,
    call: &Call,
) -> Result<(), Failed> {
    if !call.begin() {
        return Ok(());
    }
    // SAFETY: the launch guarantees the documented properties of the call's fields.
    let (send, recv) = unsafe { (Operand::<PLAIN>::new(call.send, call.count), Operand::<PLAIN>::new(call.recv, call.count)) };
    let (lines, ranks, me) = (send.lines::<T>(), u64::from(call.ranks), u64::from(call.rank));
    let part = lines.div_ceil(ranks);
    let results = ranks * part;
    let outgoing = |line| outgoing::<T, PLAIN>(call.op, call.scalar, send.read::<T>(line));
    // Returns the number, in the whole input, of line `index` of the part that the rank `k` places
    // after this rank reduces.
    let line_of = |k: u32, index: u64| u64::from(call.rank_after(k)) * part + index;
    let there = |k: u32, index: u64| k < call.ranks && line_of(k, index) < lines;
    // SAFETY: the launch guarantees the counter, and areas with banks for twice the lines of all
    // parts.
    let banks = unsafe {
        push_to_banks::<W, MORE, 1, false>(call, part, me * part, there, |k, index| outgoing(line_of(k, index)), |_, _| ())?
    };
    let (first, step) = position();
    let thread = Thread::<PLAIN> { ctx, call, send, recv, banks, lines, part, results, step };
    let mut index = first;
    if PLAIN && !MORE {
        index = thread.reduce_lines::<T, W>(index)?;
    }
    while index < part && me * part + index < lines {
        let line = me * part + index;
        let row = thread.inputs(index);
        let result = await_sum::<T, W, MORE, PLAIN>(ctx, KernelOp::AllReduce, call, row, outgoing(line))?;
        let mut base = 0;
        loop {
            thread.push::<W>(base, line, result);
            base += W as u32;
            if !MORE || base >= call.ranks {
                break;
            }
        }
        if call.has_results(0) {
            recv.write::<T>(line, result);
        }
        put_back::<W, MORE>(call, row);
        index += step;
    }
    if !call.has_results(0) {
        return Ok(());
    }
    let mut index = first;
    if PLAIN && !MORE {
        index = thread.copy_lines::<T, W>(index)?;
    }
    while index < part {
        // Only the last part may be shorter, because the number of lines is at least the square of
        // the number of ranks.
        let present = if (ranks - 1) * part + index < lines { call.ranks } else { call.ranks - 1 };
        let row = Row { ranks: present, ..thread.inputs(results + index) };
        await_lines::<W, MORE>(ctx, KernelOp::AllReduce, call, row, [0; 2], |base, lines| {
            for (rank, line) in (base..).zip(lines) {
                if rank < present && rank != call.rank {
                    recv.write::<T>(u64::from(rank) * part + index, line);
                }
            }
        })?;
        put_back::<W, MORE>(call, row);
        index += step;
    }
    Ok(())
}
