//! Checks changes of signals, tests of signals, and waits for signals at each scope.

use crate::{Check, takes_part};
use peerweave_device::prelude::*;

/// Required number of words of `words`.
pub const WORDS: usize = 8;

/// Checks signals. `words` has [`WORDS`] words, initially 0. The launch has one block on each PE.
#[kernel]
pub fn check_signal(ctx: &Context, words: SymSlice<u64>, result: SymSlice<u64>) -> Result<(), Failed> {
    let check = Check::new(ctx, result);
    let (_, next, before) = check.ring();
    let (set, added, each, order, data) = (words.at(0), words.at(1), words.at(2), words.at(3), words.at(4));
    if takes_part!(thread) {
        // Checks a set signal: tests before the set, and a wait, a fetch and tests after the set.
        check.same(line!(), ctx.signal_test(set, Compare::Gt, 100).is_some() as u64, 0);
        ctx.signal_op(set, 7, SignalOp::Set, next);
        check.same(line!(), ctx.signal_wait_until(set, Compare::Eq, 7)?, 7);
        check.same(line!(), ctx.signal_fetch(set), 7);
        check.same(line!(), ctx.signal_test(set, Compare::Ge, 7).unwrap_or(0), 7);
        check.same(line!(), ctx.signal_test(set, Compare::Ne, 7).is_some() as u64, 0);

        // All PEs add to the signal of each PE, by the strong and the relaxed form. No addition may
        // be lost.
        for pe in 0..ctx.n_pes() {
            ctx.signal_op(added, 3, SignalOp::Add, pe);
            ctx.signal_op_relaxed(added, 4, SignalOp::Add, pe);
        }
        let sum = 7 * u64::from(ctx.n_pes());
        check.same(line!(), ctx.signal_wait_until_from(added, Compare::Ge, sum, before)?, sum);

        // Checks the form that signals several PEs.
        ctx.signal_op_each(each, 1, SignalOp::Add, 0..ctx.n_pes());
        ctx.signal_wait_until(each, Compare::Ge, u64::from(ctx.n_pes()))?;

        // In every round, data that was put before a signal is visible after the wait for the
        // signal.
        for round in 1..=50 {
            ctx.p(data, 1000 + round, next);
            ctx.signal_op(order, round, SignalOp::Set, next);
            ctx.signal_wait_until_from(order, Compare::Eq, round, before)?;
            check.same(line!(), ctx.local(data).read(0), 1000 + round);
            // The data must not be overwritten before the next PE has read it.
            ctx.signal_op(words.at(5), 1, SignalOp::Add, before);
            ctx.signal_wait_until_from(words.at(5), Compare::Ge, round, next)?;
        }
    }
    check.meet()?;
    if takes_part!(warp) {
        if gpu::lane() == 0 {
            ctx.signal_op(words.at(6), 5, SignalOp::Set, next);
        }
        ctx.signal_wait_until_warp(words.at(6), Compare::Eq, 5)?;
        check.same(line!(), ctx.signal_fetch(words.at(6)), 5);
    }
    if gpu::thread_rank() == 0 {
        ctx.signal_op(words.at(7), 6, SignalOp::Set, next);
    }
    ctx.signal_wait_until_block(words.at(7), Compare::Lt, 7)?;
    ctx.signal_wait_until_block(words.at(7), Compare::Eq, 6)?;
    check.same(line!(), ctx.signal_fetch(words.at(7)), 6);
    check.finish();
    Ok(())
}
