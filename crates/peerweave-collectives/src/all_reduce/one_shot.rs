//! One-shot: every rank pushes all of its lines to every rank, and reduces what arrives.

use crate::line::Operand;
use crate::reduce::{Class, outgoing, reduce};
use crate::wait::{await_lines, bank, position, put_back};
use crate::{Call, epoch};
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

/// The lines of rank `r` are at `r * lines` of a bank.
#[inline(always)]
pub(super) fn run<T: Class, const W: usize, const PLAIN: bool>(ctx: &Context, call: &Call) -> Result<(), Failed> {
    if !call.begin() {
        return Ok(());
    }
    // SAFETY: the launch promises what the fields of the call say.
    let (send, recv) = unsafe { (Operand::<PLAIN>::new(call.send, call.count), Operand::<PLAIN>::new(call.recv, call.count)) };
    let lines = send.lines::<T>();
    let own = |line| outgoing::<T, PLAIN>(call.op, call.scalar, send.read::<T>(line));
    let (first, step) = position();
    // Before the epoch, so that both loads are under way at the same time.
    let mut value = if first < lines { own(first) } else { [0; 2] };
    // SAFETY: the launch promises the counter.
    let epoch = unsafe { epoch::read(call.counter) };
    // SAFETY: the areas have banks for the lines of all ranks: the launch promises it.
    let area = |k| unsafe { bank(call, k, epoch) };
    let mut line = first;
    while line < lines {
        for k in 1..W as u32 {
            if k < call.ranks {
                area(k).push(u64::from(call.rank) * lines + line, value);
            }
        }
        line += step;
        if line < lines {
            value = own(line);
        }
    }
    // SAFETY: as above. While the lines travel.
    unsafe { epoch::end(call.counter) };
    let mut line = first;
    while line < lines {
        let all = await_lines::<W>(ctx, KernelOp::AllReduce, call, call.ranks, area(0), line, lines, own(line))?;
        recv.write::<T>(line, reduce::<T, W, PLAIN>(call.op, call.ranks, &all));
        put_back::<W>(call, call.ranks, area(0), line, lines);
        line += step;
    }
    Ok(())
}
