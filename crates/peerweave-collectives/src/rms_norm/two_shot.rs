//! The two-shot algorithm of RMSNorm. Rank `r` reduces part `r` of each row, adds the residual, and
//! pushes the resulting part of `x` to every rank. Each rank also writes its own part of `x` to its
//! own staging area. There all threads of a block find the complete row that they normalise.

use super::row::{Operands, Real, added, each_index, each_row, normalise};
use super::{Norm, part_lines};
use crate::Call;
use crate::epoch;
use crate::line::has_arrived;
use crate::line::wait::{Row, await_sum, bank, put_back};
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

/// Runs the two-shot kernel of RMSNorm. Each launch uses one of the two banks in every staging
/// area. A bank starts with the parts from rank 0: one part of each row. The parts from the other
/// ranks follow in rank order. After all parts, the bank has the rows of `x`.
#[inline(always)]
pub(super) fn run<T: Real, const W: usize, const MORE: bool>(ctx: &Context, call: &Call, norm: &Norm) -> Result<(), Failed> {
    if !call.begin() {
        return Ok(());
    }
    // SAFETY: the launch guarantees the documented properties of the arguments.
    let operands = unsafe { Operands::new::<T>(call, norm) };
    let (lines, me) = (norm.row_lines, u64::from(call.rank));
    let part = part_lines(lines, call.ranks);
    let parts = norm.rows * part;
    // Returns the number of lines in the part that the rank `k` places after this rank reduces, and
    // the first line of that part in a row.
    let part_of = |k: u32| {
        let start = u64::from(call.rank_after(k)) * part;
        (lines.saturating_sub(start).min(part), start)
    };
    // SAFETY: the launch guarantees the counter.
    let epoch = unsafe { epoch::read(call.counter) };
    // SAFETY: the launch guarantees areas with banks for the parts of all ranks and for all rows.
    let bank_of = |k: u32| unsafe { bank(call, k, epoch) };
    each_row(norm, |row| {
        call.each_after::<W, MORE>(|k| {
            let (n, start) = part_of(k);
            let to = bank_of(k).from(me * parts + row * part);
            each_index(n, |index| to.push(index, operands.send.read_whole(row * lines + start + index)));
        });
        true
    });
    // SAFETY: the launch guarantees the counter. The launch is counted while the lines are in
    // transit.
    unsafe { epoch::end(call.counter) };
    let banks = bank_of(0);
    let rows = |k: u32| bank_of(k).from(u64::from(call.ranks) * parts);
    let (n, start) = part_of(0);
    let mut failed = false;
    each_row(norm, |row| {
        each_index(n, |index| {
            if failed {
                return;
            }
            let line = row * lines + start + index;
            let (own, residual) = (operands.send.read_whole(line), operands.residual.read_whole(line));
            let found = Row { lines: banks, first: row * part + index, stride: parts, ranks: call.ranks };
            match await_sum::<T, W, MORE, true>(ctx, KernelOp::AllReduce, call, found, own) {
                Ok(sum) => {
                    let x = added::<T>(sum, residual);
                    call.each_after::<W, MORE>(|k| rows(k).push(line, x));
                    rows(0).push(line, x);
                    put_back::<W, MORE>(call, found);
                }
                Err(_) => failed = true,
            }
        });
        !failed
    });
    let mut parity = 0;
    each_row(norm, |row| {
        let get = |index: u64| {
            let (own, line) = (rows(0), row * lines + index);
            let look = || Some(own.look(line)).filter(|found| has_arrived(*found, call.sentinel));
            let x = ctx.poll(KernelOp::AllReduce, look, || call.pe_of((index / part) as u32))?;
            own.push(line, call.sentinel);
            Ok(x)
        };
        parity += 1;
        normalise::<T>(norm, &operands, row, parity, failed, get)
    });
    Ok(())
}
