//! The collectives all_gather and all_to_all: every rank gets one part from each rank, in the order
//! of ranks.
//!
//! In these kernels, [`Call::count`] is the length of a part in bytes.

use crate::Call;
use crate::line::Operand;
use crate::line::push::push_to_banks;
use crate::line::wait::{Row, await_lines, await_two_rows, position, put_back};
use peerweave_device::gpu::Vector;
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

/// The collective that an exchange kernel carries out. It determines the data that a rank sends to
/// each of the other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// Each rank sends its whole input, which is one part, to every rank.
    AllGather,
    /// Each rank sends part `r` of its input to rank `r`.
    AllToAll,
}

/// Runs an all_gather or an all_to_all. Each launch uses one of the two banks in every staging
/// area. A bank has one part from each rank, in rank order: if a part has `n` lines of 16 bytes,
/// the part from rank `r` starts at line `r * n` of the bank.
#[inline(always)]
fn run<const W: usize, const MORE: bool, const EACH: bool, const WHOLE: bool>(ctx: &Context, call: &Call) -> Result<(), Failed> {
    if !call.begin() {
        return Ok(());
    }
    let operation = if EACH { KernelOp::AllToAll } else { KernelOp::AllGather };
    // SAFETY: the launch guarantees an input of one part, or of one part for each rank, and a
    // result of one part for each rank.
    let (send, recv) = unsafe {
        (
            |rank: u32| Operand::<WHOLE>::new(call.send + if EACH { u64::from(rank) * call.count } else { 0 }, call.count),
            |rank: u32| Operand::<WHOLE>::new(call.recv + u64::from(rank) * call.count, call.count),
        )
    };
    let lines = recv(0).lines::<u8>();
    let load = |k: u32, line| send(call.rank_after(k)).read::<u8>(line);
    let keep = |line, value| recv(call.rank).write::<u8>(line, value);
    let region = u64::from(call.rank) * lines;
    // SAFETY: the launch guarantees the counter, and areas with banks for a part of each rank.
    let banks = unsafe {
        if EACH {
            push_to_banks::<W, MORE, 0, false>(call, lines, region, |_, _| true, load, keep)?
        } else {
            push_to_banks::<W, MORE, 0, true>(call, lines, region, |_, _| true, load, keep)?
        }
    };
    let (first, step) = position();
    let row_of = |line| Row { lines: banks, first: line, stride: lines, ranks: call.ranks };
    let mut line = first;
    let store = |base: u32, line: u64, values: &[Vector; W]| {
        for (rank, value) in (base..).zip(values) {
            if rank < call.ranks && rank != call.rank {
                recv(rank).write::<u8>(line, *value);
            }
        }
    };
    if WHOLE && !MORE {
        // Loading two lines of each rank takes as long as loading one.
        while line + step < lines {
            let (row, next) = (row_of(line), line + step);
            let found = await_two_rows::<W>(ctx, operation, call, row, step, [[0; 2]; 2])?;
            store(0, line, &found[0]);
            store(0, next, &found[1]);
            put_back::<W, false>(call, row);
            put_back::<W, false>(call, row_of(next));
            line = next + step;
        }
    }
    while line < lines {
        let row = row_of(line);
        await_lines::<W, MORE>(ctx, operation, call, row, [0; 2], |base, values| store(base, line, &values))?;
        put_back::<W, MORE>(call, row);
        line += step;
    }
    Ok(())
}

macro_rules! entries {
    ($($name:ident: <$w:literal, $more:literal, $each:literal, $whole:literal>;)*) => {$(
        /// Runs an all_gather or an all_to_all. The kernel's name ends with the maximum number of
        /// ranks.
        #[kernel(max_threads = 512, unchecked, ptx = crate::PTX)]
        pub fn $name(ctx: &Context, call: Call) -> Result<(), Failed> {
            run::<$w, $more, $each, $whole>(ctx, &call)
        }
    )*};
}

entries! {
    all_gather_plain_2: <2, false, false, true>;
    all_gather_2: <2, false, false, false>;
    all_gather_plain_4: <4, false, false, true>;
    all_gather_4: <4, false, false, false>;
    all_gather_plain_8: <4, true, false, true>;
    all_gather_8: <4, true, false, false>;
    all_to_all_plain_2: <2, false, true, true>;
    all_to_all_2: <2, false, true, false>;
    all_to_all_plain_4: <4, false, true, true>;
    all_to_all_4: <4, false, true, false>;
    all_to_all_plain_8: <4, true, true, true>;
    all_to_all_8: <4, true, true, false>;
}

/// Returns the kernel of all_gather or all_to_all for `ranks` ranks, or `None` if `ranks` is not 1
/// to [`MAX_RANKS`](crate::MAX_RANKS). Pass `true` as `is_whole` only if the addresses of both
/// operands and the length of a part are multiples of [`LINE_BYTES`](crate::LINE_BYTES).
#[cfg(not(target_arch = "nvptx64"))]
pub fn kernel(exchange: Exchange, ranks: u32, is_whole: bool) -> Option<&'static peerweave_device::launch::Kernel<(Call,)>> {
    use Exchange::{AllGather, AllToAll};
    if ranks == 0 || ranks as usize > crate::MAX_RANKS {
        return None;
    }
    Some(match (exchange, ranks, is_whole) {
        (AllGather, ..=2, true) => &all_gather_plain_2::KERNEL,
        (AllGather, ..=2, false) => &all_gather_2::KERNEL,
        (AllGather, ..=4, true) => &all_gather_plain_4::KERNEL,
        (AllGather, ..=4, false) => &all_gather_4::KERNEL,
        (AllGather, _, true) => &all_gather_plain_8::KERNEL,
        (AllGather, _, false) => &all_gather_8::KERNEL,
        (AllToAll, ..=2, true) => &all_to_all_plain_2::KERNEL,
        (AllToAll, ..=2, false) => &all_to_all_2::KERNEL,
        (AllToAll, ..=4, true) => &all_to_all_plain_4::KERNEL,
        (AllToAll, ..=4, false) => &all_to_all_4::KERNEL,
        (AllToAll, _, true) => &all_to_all_plain_8::KERNEL,
        (AllToAll, _, false) => &all_to_all_8::KERNEL,
    })
}
