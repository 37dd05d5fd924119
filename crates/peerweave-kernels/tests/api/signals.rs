//! Tests of signals, puts with signal, and waits for one, any, all or some of several signals.

use crate::{PES, go, job, right};
use peerweave_device::prelude::*;

/// Does nothing: one thread has no other thread to wait for.
fn alone() {}

macro_rules! pipeline {
    ($name:ident, $threads:literal: $put_signal:ident $put_signal_nbi:ident $wait:ident $wait_from:ident, $sync:expr) => {
        mod $name {
            use super::*;

            /// Passes the elements of PE 0 around the ring three times. Each PE adds one to every
            /// element.
            #[kernel]
            fn pipeline(ctx: &Context, data: SymSlice<u32>, signal: SymSlice<u64>) -> Result<(), Failed> {
                let (me, rounds) = (ctx.my_pe(), 3);
                for round in 1..=rounds {
                    if me != 0 || round > 1 {
                        let value = if me == 0 { round - 1 } else { round };
                        if round % 2 == 0 {
                            ctx.$wait(signal, Compare::Ge, value)?;
                        } else {
                            let left = (me + ctx.n_pes() - 1) % ctx.n_pes();
                            ctx.$wait_from(signal, Compare::Ge, value, left)?;
                        }
                    }
                    let mine = ctx.local(data);
                    let mut at = gpu::thread_rank() as usize;
                    while at < mine.len() {
                        mine.write(at, mine.read(at) + 1);
                        at += gpu::block_threads() as usize;
                    }
                    $sync;
                    if round % 2 == 0 {
                        ctx.$put_signal(data, data, signal, round, SignalOp::Set, right(ctx));
                    } else {
                        ctx.$put_signal_nbi(data, data, signal, 1, SignalOp::Add, right(ctx));
                    }
                }
                if me == 0 {
                    ctx.$wait(signal, Compare::Eq, rounds)?;
                }
                assert_eq!(ctx.signal_fetch(signal), rounds);
                Ok(())
            }

            #[test]
            fn elements_put_before_a_signal_are_visible_after_the_signal() {
                for seed in 0..12 {
                    let mut job = job(seed);
                    let (data, signal) = (job.alloc::<u32>(77), job.alloc::<u64>(1));
                    go(&mut job, &pipeline::KERNEL, $threads, (data, signal));
                    assert_eq!(job.read(0, data), vec![3 * PES; 77], "seed {seed}");
                }
            }
        }
    };
}

pipeline!(thread, 1: put_signal put_signal_nbi signal_wait_until signal_wait_until_from, alone());
pipeline!(warp, 32: put_signal_warp put_signal_nbi_warp signal_wait_until_warp signal_wait_until_from_warp, gpu::sync_warp(gpu::warp_mask()));
pipeline!(block, 48: put_signal_block put_signal_nbi_block signal_wait_until_block signal_wait_until_from_block, gpu::sync_threads());

#[kernel]
fn several(ctx: &Context, signals: SymSlice<u64>, seen: SymSlice<u64>) -> Result<(), Failed> {
    let (me, n) = (ctx.my_pe(), ctx.n_pes());
    if me == 0 {
        for pe in 1..n {
            ctx.signal_op(signals.at(pe as usize), 10 + u64::from(pe), SignalOp::Set, pe);
        }
        // Every other PE answers in its own word of `signals`.
        let not_mine = |index: usize| index == 0 || index >= PES as usize;
        let mut indices = [0; 8];
        let some = ctx.wait_until_some(signals, &mut indices, not_mine, Compare::Ne, 0)?;
        assert!(some >= 1 && indices[..some].iter().all(|index| (1..PES as usize).contains(index)));
        ctx.wait_until_all(signals, not_mine, Compare::Eq, 5)?;
        assert!(ctx.test_all(signals, not_mine, Compare::Eq, 5));
        assert_eq!(ctx.test_any(signals, not_mine, Compare::Eq, 5), Some(1));
        assert_eq!(ctx.test_some(signals, &mut indices, not_mine, Compare::Eq, 5), PES as usize - 1);
        assert_eq!(ctx.wait_until_any(signals, |_| true, Compare::Eq, 1)?, None);
        assert_eq!(ctx.wait_until_some(signals, &mut indices, |_| true, Compare::Eq, 1)?, 0);
        ctx.wait_until_all(signals, |_| true, Compare::Eq, 1)?;
        let values: [u64; 8] = core::array::from_fn(|index| if index == 2 { 5 } else { 99 });
        assert_eq!(ctx.wait_until_any_vector(signals, EXCLUDE_NONE, Compare::Eq, &values)?, Some(2));
        assert_eq!(ctx.test_any_vector(signals, EXCLUDE_NONE, Compare::Eq, &values), Some(2));
        assert!(!ctx.test_all_vector(signals, EXCLUDE_NONE, Compare::Eq, &values));
        assert_eq!(ctx.test_some_vector(signals, &mut indices, EXCLUDE_NONE, Compare::Eq, &values), 1);
        ctx.wait_until_all_vector(signals, |index| index != 2, Compare::Eq, &values)?;
        assert_eq!(ctx.wait_until_some_vector(signals, &mut [], EXCLUDE_NONE, Compare::Eq, &values)?, 1);
        ctx.signal_op_each(signals.at(7), 3, SignalOp::Add, 0..n);
    } else {
        let value = ctx.signal_wait_until(signals.at(me as usize), Compare::Gt, 10)?;
        assert_eq!(ctx.signal_test(signals.at(me as usize), Compare::Lt, 10), None);
        ctx.local(seen).write(0, value);
        ctx.signal_op(signals.at(me as usize), 5, SignalOp::Set, 0);
    }
    ctx.wait_until(signals.at(7), Compare::Eq, 3)?;
    assert!(ctx.test(signals.at(7), Compare::Le, 3));
    Ok(())
}

#[test]
fn waits_and_tests_of_several_signals_ignore_excluded_signals() {
    for seed in 0..20 {
        let mut job = job(seed);
        let (signals, seen) = (job.alloc::<u64>(8), job.alloc::<u64>(1));
        go(&mut job, &several::KERNEL, 1, (signals, seen));
        for pe in 1..PES {
            assert_eq!(job.read(pe, seen), [10 + u64::from(pe)]);
        }
    }
}

macro_rules! compares {
    ($($name:ident $t:ty: $low:expr, $high:expr;)*) => {$(
        mod $name {
            use super::*;

            #[kernel]
            fn compares(ctx: &Context, of: SymSlice<$t>) -> Result<(), Failed> {
                let pe = ctx.my_pe();
                ctx.atomic_set(of, $low, pe);
                for (compare, value) in [
                    (Compare::Eq, $low), (Compare::Ne, $high), (Compare::Lt, $high), (Compare::Le, $low), (Compare::Ge, $low),
                ] {
                    ctx.wait_until(of, compare, value)?;
                    assert!(ctx.test(of, compare, value));
                }
                assert!(!ctx.test(of, Compare::Gt, $low) && !ctx.test(of, Compare::Ge, $high));
                assert!(!ctx.test(of, Compare::Ne, $low) && !ctx.test(of, Compare::Lt, $low));
                ctx.atomic_set(of, $high, pe);
                ctx.wait_until(of, Compare::Gt, $low)
            }

            #[test]
            fn comparisons_follow_the_signedness_of_the_element_type() {
                let mut job = job(0);
                let of = job.alloc::<$t>(1);
                go(&mut job, &compares::KERNEL, 1, (of,));
            }
        }
    )*};
}

compares! {
    compares_i32 i32: -5, 3;
    compares_u32 u32: 3, u32::MAX;
    compares_i64 i64: i64::MIN, 1;
    compares_u64 u64: 3, u64::MAX;
}

/// One thread of PE 0 puts an element, and then all threads of PE 0 put with signal. PE 1 reads the
/// element after the signal.
#[kernel]
fn put_before_signal(ctx: &Context, element: SymSlice<u32>, data: SymSlice<u32>, signal: SymSlice<u64>) -> Result<(), Failed> {
    if ctx.my_pe() == 0 {
        if gpu::thread_rank() == gpu::block_threads() - 1 {
            ctx.p(element, 7, 1);
        }
        ctx.put_signal_block(data, data, signal, 1, SignalOp::Set, 1);
    } else if ctx.my_pe() == 1 {
        ctx.signal_wait_until_block(signal, Compare::Ge, 1)?;
        assert_eq!(ctx.local(element).read(0), 7, "the element did not arrive before the signal");
    }
    Ok(())
}

#[test]
fn put_signal_over_a_network_arrives_after_earlier_puts() {
    for seed in 0..100 {
        let mut job = job(seed).machines_of(1);
        let (element, data, signal) = (job.alloc::<u32>(1), job.alloc::<u32>(5), job.alloc::<u64>(1));
        go(&mut job, &put_before_signal::KERNEL, 8, (element, data, signal));
    }
}
