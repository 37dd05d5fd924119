//! Bandwidth: every block moves a part of the elements, again and again.

use super::{Clock, WARM_UP};
use peerweave_device::prelude::*;

/// The part of this block: all but the last are multiples of 16 bytes.
#[inline(always)]
fn part(of: SymSlice<u64>) -> SymSlice<u64> {
    let blocks = gpu::grid_dim().count() as usize;
    let each = of.len().div_ceil(blocks).next_multiple_of(2);
    let start = (gpu::block_rank() as usize * each).min(of.len());
    of.slice(start..).truncate(each)
}

/// Every block puts its part of the elements; `quiet` at the end. `result[block]` is the nanoseconds of one repetition.
#[kernel(max_threads = 1024)]
pub fn bench_put_bandwidth(
    ctx: &Context,
    to: SymSlice<u64>,
    from: SymSlice<u64>,
    pe: u32,
    iterations: u32,
    result: DeviceSlice<u64>,
) {
    let (to, from) = (part(to), part(from));
    let mut clock = Clock::new(iterations);
    for repetition in 0..iterations.saturating_add(WARM_UP) {
        clock.tick(repetition);
        ctx.put_nbi_block(to, from, pe);
    }
    ctx.quiet();
    gpu::sync_threads();
    clock.write(result.slice(gpu::block_rank() as usize..));
}

/// Every block gets its part of the elements. `result[block]` is the nanoseconds of one repetition.
#[kernel(max_threads = 1024)]
pub fn bench_get_bandwidth(
    ctx: &Context,
    to: SymSlice<u64>,
    from: SymSlice<u64>,
    pe: u32,
    iterations: u32,
    result: DeviceSlice<u64>,
) {
    let (to, from) = (part(to), part(from));
    let mut clock = Clock::new(iterations);
    for repetition in 0..iterations.saturating_add(WARM_UP) {
        clock.tick(repetition);
        ctx.get_nbi_block(to, from, pe);
    }
    ctx.quiet();
    gpu::sync_threads();
    clock.write(result.slice(gpu::block_rank() as usize..));
}
