//! The one-shot algorithm of all_reduce: every rank pushes all lines of its input to every rank,
//! and reduces the lines that it receives. Every rank pushes to every rank even if only one rank
//! gets the result, because every two ranks must exchange a line ([`mod@crate::epoch`]). The extra
//! lines use links that are otherwise idle.

use crate::Call;
use crate::line::Operand;
use crate::line::push::push_to_banks;
use crate::line::reduce::{Class, outgoing};
use crate::line::wait::{Row, await_sum, position, put_back};
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

/// Runs the one-shot kernel of all_reduce. Each launch uses one of the two banks in every staging
/// area. A bank has the inputs of the ranks, in rank order: if an input has `n` lines of 16 bytes,
/// the input of rank `r` starts at line `r * n` of the bank.
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
    let lines = send.lines::<T>();
    let own = |line| outgoing::<T, PLAIN>(call.op, call.scalar, send.read::<T>(line));
    let region = u64::from(call.rank) * lines;
    let load = |_, line| own(line);
    // SAFETY: the launch guarantees the counter, and areas with banks for the lines of all ranks.
    let banks = unsafe { push_to_banks::<W, MORE, 0, true>(call, lines, region, |_, _| true, load, |_, _| ())? };
    let (first, step) = position();
    let mut line = first;
    while line < lines {
        let row = Row { lines: banks, first: line, stride: lines, ranks: call.ranks };
        let result = await_sum::<T, W, MORE, PLAIN>(ctx, KernelOp::AllReduce, call, row, own(line))?;
        if call.has_results(0) {
            recv.write::<T>(line, result);
        }
        put_back::<W, MORE>(call, row);
        line += step;
    }
    Ok(())
}
