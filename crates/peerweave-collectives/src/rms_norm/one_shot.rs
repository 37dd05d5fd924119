//! The one-shot algorithm of RMSNorm: every rank pushes all rows of its input to every rank. Every
//! rank reduces and normalises all rows itself.

use super::Norm;
use super::row::{Operands, Real, added, each_index, each_row, normalise};
use crate::Call;
use crate::epoch;
use crate::line::wait::{Row, await_sum, bank, put_back};
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

/// Runs the one-shot kernel of RMSNorm. Each launch uses one of the two banks in every staging
/// area. A bank has the inputs of the ranks, in rank order: if an input has `n` lines of 16 bytes,
/// the input of rank `r` starts at line `r * n` of the bank.
#[inline(always)]
pub(super) fn run<T: Real, const W: usize, const MORE: bool>(ctx: &Context, call: &Call, norm: &Norm) -> Result<(), Failed> {
    if !call.begin() {
        return Ok(());
    }
    // SAFETY: the launch guarantees the documented properties of the arguments.
    let operands = unsafe { Operands::new::<T>(call, norm) };
    let lines = norm.rows * norm.row_lines;
    let region = u64::from(call.rank) * lines;
    // SAFETY: the launch guarantees the counter.
    let epoch = unsafe { epoch::read(call.counter) };
    // SAFETY: the launch guarantees areas with banks for the lines of all ranks.
    let bank_of = |k: u32| unsafe { bank(call, k, epoch) };
    each_row(norm, |row| {
        each_index(norm.row_lines, |index| {
            let line = row * norm.row_lines + index;
            let value = operands.send.read_whole(line);
            call.each_after::<W, MORE>(|k| bank_of(k).from(region).push(line, value));
        });
        true
    });
    // SAFETY: the launch guarantees the counter. The launch is counted while the lines are in
    // transit.
    unsafe { epoch::end(call.counter) };
    let banks = bank_of(0);
    let mut parity = 0;
    each_row(norm, |row| {
        let get = |index| {
            let line = row * norm.row_lines + index;
            let (own, residual) = (operands.send.read_whole(line), operands.residual.read_whole(line));
            let lines = Row { lines: banks, first: line, stride: lines, ranks: call.ranks };
            let sum = await_sum::<T, W, MORE, true>(ctx, KernelOp::AllReduce, call, lines, own)?;
            put_back::<W, MORE>(call, lines);
            Ok(added::<T>(sum, residual))
        };
        parity += 1;
        normalise::<T>(norm, &operands, row, parity, false, get)
    });
    Ok(())
}
