//! Two-shot: rank `r` reduces part `r` of all inputs, and pushes the result to every rank.
//!
//! A thread handles the same lines of each part in all three steps. So a thread waits only for the
//! thread with the same number on each rank. The result may overwrite the input, because each line
//! is read before the same thread writes it.

use crate::Call;
use crate::line::{Lines, Operand};
use crate::push::push_to_banks;
use crate::reduce::{Class, outgoing};
use crate::wait::{Row, await_lines, await_sum, position, put_back};
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

/// Runs the kernel. A bank holds one part from each rank, then the reduced part of each rank.
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
    // Index in this rank's input of line `index` of the part that belongs to the rank `k` places
    // behind this rank.
    let line_of = |k: u32, index: u64| u64::from(call.rank_behind(k)) * part + index;
    let there = |k: u32, index: u64| k < call.ranks && line_of(k, index) < lines;
    // SAFETY: the launch guarantees the counter, and areas with banks for twice the number of all
    // parts.
    let banks = unsafe {
        push_to_banks::<W, MORE, 1, false>(call, part, me * part, there, |k, index| outgoing(line_of(k, index)), |_, _| ())?
    };
    // SAFETY: as above; this rank's bank is the bank of the epoch, which is at the same place in
    // each area.
    let results_of = |k: u32| unsafe { Lines::beside(banks, call.areas[0], call.area_behind(k)) }.from(results);
    let (first, step) = position();
    let mut index = first;
    while index < part && me * part + index < lines {
        let line = me * part + index;
        let row = Row { lines: banks, first: index, stride: part, ranks: call.ranks };
        let result = await_sum::<T, W, MORE, PLAIN>(ctx, KernelOp::AllReduce, call, row, outgoing(line))?;
        let mut base = 0;
        loop {
            for k in base..base + W as u32 {
                if k > 0 && k < call.ranks && call.has_results(k) {
                    results_of(k).push(line, result);
                }
            }
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
    while index < part {
        // Only the last part may be shorter: there are at least as many lines as the square of the
        // number of ranks.
        let present = if (ranks - 1) * part + index < lines { call.ranks } else { call.ranks - 1 };
        let row = Row { lines: banks, first: results + index, stride: part, ranks: present };
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
