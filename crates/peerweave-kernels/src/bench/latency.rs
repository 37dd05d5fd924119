//! Latency of puts and gets, by scope and by length.

use super::{Clock, WARM_UP};
use peerweave_device::prelude::*;

/// Measures the latency of a `p` of 8 bytes and of the `quiet` that follows. One thread makes both
/// calls.
#[kernel(max_threads = 128)]
pub fn bench_p(ctx: &Context, to: SymSlice<u64>, pe: u32, iterations: u32, result: DeviceSlice<u64>) {
    let mut clock = Clock::new(iterations);
    for repetition in 0..iterations.saturating_add(WARM_UP) {
        clock.tick(repetition);
        if gpu::thread_rank() == 0 {
            ctx.p(to, u64::from(repetition), pe);
            ctx.quiet();
        }
    }
    clock.write(result);
}

/// Measures the latency of `g`: one thread gets 8 bytes, and each get waits for the previous get.
#[kernel(max_threads = 128)]
pub fn bench_g(ctx: &Context, from: SymSlice<u64>, pe: u32, iterations: u32, result: DeviceSlice<u64>) {
    let mut clock = Clock::new(iterations);
    let mut sum = 0u64;
    for repetition in 0..iterations.saturating_add(WARM_UP) {
        clock.tick(repetition);
        if gpu::thread_rank() == 0 {
            // The next address depends on the value read. The memory is zero, so every get reads
            // the first element.
            let place = (sum as usize).min(from.len().saturating_sub(1));
            sum = ctx.g(from.slice(place..), pe);
        }
    }
    clock.write(result);
    if result.len() > 1 && gpu::thread_rank() == 0 {
        result.write(1, sum);
    }
}

/// Lends the block's dynamic shared memory to the context of the block's first thread. That thread
/// then starts bulk copies.
#[inline(always)]
fn lend(ctx: &Context) {
    if gpu::thread_rank() == 0 {
        // SAFETY: the kernels of this module use no dynamic shared memory themselves.
        unsafe { ctx.lend_shared(SharedSlice::dynamic()) };
    }
}

/// Does nothing. Benchmarks without bulk copies call this function in the place of [`lend`]. Their
/// contexts have no shared memory for bulk copies, so the threads copy the elements themselves.
#[inline(always)]
fn keep(_: &Context) {}

/// Does nothing, because a scope of one thread has no other thread for which to wait.
#[inline(always)]
fn alone() {}

macro_rules! latency {
    ($threads:tt, $lend:ident, $memory:literal, $words:literal, $calls:expr, $sync:expr;
        $put:ident = $put_call:ident, $get:ident = $get_call:ident) => {
        #[doc = concat!("Measures the latency of a put and of the `quiet` that follows. The put copies all elements, and is called by ", $words, ". The first thread of the block calls `quiet`. ", $memory)]
        #[kernel(max_threads = $threads)]
        pub fn $put(ctx: &Context, to: SymSlice<u64>, from: SymSlice<u64>, pe: u32, iterations: u32, result: DeviceSlice<u64>) {
            $lend(ctx);
            let mut clock = Clock::new(iterations);
            let (calls, first) = ($calls, gpu::thread_rank() == 0);
            for repetition in 0..iterations.saturating_add(WARM_UP) {
                clock.tick(repetition);
                if calls {
                    ctx.$put_call(to, from, pe);
                }
                if first {
                    ctx.quiet();
                }
                $sync;
            }
            clock.write(result);
        }

        #[doc = concat!("Measures the latency of a get. The get copies all elements, and is called by ", $words, ". ", $memory)]
        #[kernel(max_threads = $threads)]
        pub fn $get(ctx: &Context, to: SymSlice<u64>, from: SymSlice<u64>, pe: u32, iterations: u32, result: DeviceSlice<u64>) {
            $lend(ctx);
            let mut clock = Clock::new(iterations);
            let calls = $calls;
            for repetition in 0..iterations.saturating_add(WARM_UP) {
                clock.tick(repetition);
                if calls {
                    ctx.$get_call(to, from, pe);
                }
                $sync;
            }
            clock.write(result);
        }
    };
    ($threads:tt, $words:literal, $calls:expr, $sync:expr;
        $put:ident, $put_lent:ident = $put_call:ident, $get:ident, $get_lent:ident = $get_call:ident) => {
        latency!($threads, keep, "The threads themselves copy the elements.", $words, $calls, $sync; $put = $put_call, $get = $get_call);
        latency!($threads, lend, "Bulk copies use dynamic shared memory, which the launch must request.", $words, $calls, $sync;
            $put_lent = $put_call, $get_lent = $get_call);
    };
}

latency!(128, "one thread", gpu::thread_rank() == 0, alone();
    bench_put_thread, bench_put_thread_lent = put, bench_get_thread, bench_get_thread_lent = get);
latency!(128, "one warp", gpu::warp() == 0, gpu::sync_warp(gpu::warp_members());
    bench_put_warp, bench_put_warp_lent = put_warp, bench_get_warp, bench_get_warp_lent = get_warp);
latency!(1024, "one block", true, gpu::sync_threads();
    bench_put_block, bench_put_block_lent = put_block, bench_get_block, bench_get_block_lent = get_block);
