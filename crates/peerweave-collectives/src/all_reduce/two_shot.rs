//! Two-shot: rank `r` reduces part `r` of all inputs, and pushes the result to every rank.
//!
//! A thread handles the same lines of each part in all three steps. So a thread waits only for the
//! thread of the same number on each rank, and the result may overwrite the input: each line is
//! read before the same thread writes it.

use crate::line::Operand;
use crate::reduce::{Class, outgoing, reduce};
use crate::wait::{await_lines, bank, position, put_back};
use crate::{Call, epoch};
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

/// A bank holds one part from each rank, then the reduced part of each rank.
#[inline(always)]
pub(super) fn run<T: Class, const W: usize, const PLAIN: bool>(ctx: &Context, call: &Call) -> Result<(), Failed> {
    if !call.begin() {
        return Ok(());
    }
    // SAFETY: the launch promises what the fields of the call say.
    let (send, recv) = unsafe { (Operand::<PLAIN>::new(call.send, call.count), Operand::<PLAIN>::new(call.recv, call.count)) };
    let (lines, ranks, me) = (send.lines::<T>(), u64::from(call.ranks), u64::from(call.rank));
    let part = lines.div_ceil(ranks);
    let results = ranks * part;
    let outgoing = |line| outgoing::<T, PLAIN>(call.op, call.scalar, send.read::<T>(line));
    // This rank's line of the part of the rank `k` places behind it, if it has one.
    let line_of = |k: u32, index: u64| u64::from(call.rank_behind(k)) * part + index;
    let there = |k: u32, index: u64| k < call.ranks && line_of(k, index) < lines;
    let (first, step) = position();
    // Before the epoch, so that all loads are under way at the same time.
    let mut values = [[0; 2]; W];
    if first < part {
        for k in 1..W {
            if there(k as u32, first) {
                values[k] = outgoing(line_of(k as u32, first));
            }
        }
    }
    // SAFETY: the launch promises the counter.
    let epoch = unsafe { epoch::read(call.counter) };
    // SAFETY: the areas have banks for two times all parts: the launch promises it.
    let area = |k| unsafe { bank(call, k, epoch) };

    let mut index = first;
    while index < part {
        for k in 1..W {
            if there(k as u32, index) {
                area(k as u32).push(me * part + index, values[k]);
            }
        }
        index += step;
        if index < part {
            for k in 1..W {
                if there(k as u32, index) {
                    values[k] = outgoing(line_of(k as u32, index));
                }
            }
        }
    }

    // SAFETY: as above. While the lines travel.
    unsafe { epoch::end(call.counter) };
    let mut index = first;
    while index < part && me * part + index < lines {
        let line = me * part + index;
        let all = await_lines::<W>(ctx, KernelOp::AllReduce, call, call.ranks, area(0), index, part, outgoing(line))?;
        let result = reduce::<T, W, PLAIN>(call.op, call.ranks, &all);
        for k in 1..W as u32 {
            if k < call.ranks {
                area(k).push(results + line, result);
            }
        }
        recv.write::<T>(line, result);
        put_back::<W>(call, call.ranks, area(0), index, part);
        index += step;
    }

    let mut index = first;
    while index < part {
        // Only the last part may be shorter: there are at least as many lines as the square of the
        // number of ranks.
        let present = if (ranks - 1) * part + index < lines { call.ranks } else { call.ranks - 1 };
        let all = await_lines::<W>(ctx, KernelOp::AllReduce, call, present, area(0), results + index, part, [0; 2])?;
        for (rank, line) in all.iter().enumerate() {
            if (rank as u32) < present && rank as u32 != call.rank {
                recv.write::<T>(rank as u64 * part + index, *line);
            }
        }
        put_back::<W>(call, present, area(0), results + index, part);
        index += step;
    }
    Ok(())
}
