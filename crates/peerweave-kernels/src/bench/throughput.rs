//! Bandwidth of puts and gets. Every block transfers its part of the elements `iterations` times.
//! Either all threads of the block copy vectors, or one thread of each warp starts bulk copies.
//!
//! The kernels have no warm-up, because a fast block would be measured while slow blocks still warm
//! up. To warm up, launch a kernel twice. Block `b` writes its start time to `result[2 * b]`, and
//! the time at which its transfers were complete to `result[2 * b + 1]`. The duration of a launch
//! is the time from the first start time to the last end time of all blocks.

use peerweave_device::prelude::*;

/// Writes the start time and the end time of this block to `result`. `began` is the start time, and
/// the current time is the end time.
#[inline(always)]
fn write(result: DeviceSlice<u64>, began: u64) {
    gpu::sync_threads();
    if gpu::thread_rank() == 0 {
        let at = 2 * gpu::block_rank() as usize;
        result.write(at, began);
        result.write(at + 1, gpu::now_ns());
    }
}

/// Divides `len` words into `by` equal parts. Returns the length of a part in words, rounded up to
/// a multiple of 16 bytes.
#[inline(always)]
fn divided(len: usize, by: u32) -> usize {
    len.div_ceil(by as usize).next_multiple_of(2)
}

/// Returns the part of the slice `of` that this block transfers. The length of each part is a
/// multiple of 16 bytes, unless the part contains the end of the slice.
#[inline(always)]
fn part(of: SymSlice<u64>) -> SymSlice<u64> {
    let each = divided(of.len(), gpu::grid_dim().count() as u32);
    let start = (gpu::block_rank() as usize * each).min(of.len());
    of.slice(start..).truncate(each)
}

/// Measures the bandwidth of nonblocking puts. Each block writes its part of the elements to PE
/// `pe`, `iterations` times, and then calls `quiet`.
#[kernel(max_threads = 1024)]
pub fn bench_put_bandwidth(
    ctx: &Context,
    to: SymSlice<u64>,
    from: SymSlice<u64>,
    pe: u32,
    iterations: u32,
    result: DeviceSlice<u64>,
) {
    let began = gpu::now_ns();
    let (to, from) = (part(to), part(from));
    for _ in 0..iterations {
        ctx.put_nbi_block(to, from, pe);
    }
    ctx.quiet();
    write(result, began);
}

/// Measures the bandwidth of nonblocking gets. Each block reads its part of the elements from PE
/// `pe`, `iterations` times, and then calls `quiet`.
#[kernel(max_threads = 1024)]
pub fn bench_get_bandwidth(
    ctx: &Context,
    to: SymSlice<u64>,
    from: SymSlice<u64>,
    pe: u32,
    iterations: u32,
    result: DeviceSlice<u64>,
) {
    let began = gpu::now_ns();
    let (to, from) = (part(to), part(from));
    for _ in 0..iterations {
        ctx.get_nbi_block(to, from, pe);
    }
    ctx.quiet();
    write(result, began);
}

/// Divides `of` among the warps of this block, and returns the part of this warp.
#[inline(always)]
fn share(of: SymSlice<u64>) -> SymSlice<u64> {
    let each = divided(of.len(), gpu::block_threads().div_ceil(gpu::WARP_SIZE));
    let start = (gpu::warp() as usize * each).min(of.len());
    of.slice(start..).truncate(each)
}

/// Divides the block's dynamic shared memory equally among the warps. Lends each part to the first
/// thread of its warp, which starts bulk copies.
#[inline(always)]
fn lend_each_warp(ctx: &Context) {
    let all = SharedSlice::<u8>::dynamic();
    let each = all.len() / gpu::block_threads().div_ceil(gpu::WARP_SIZE) as usize / 128 * 128;
    let start = gpu::warp() as usize * each;
    if gpu::lane() == 0 {
        // SAFETY: each warp has its own part, and the kernel itself uses no dynamic shared memory.
        unsafe { ctx.lend_shared(all.slice(start..start + each)) };
    }
}

macro_rules! bulk {
    ($name:ident, $call:ident, $words:literal) => {
        #[doc = concat!("Measures the bandwidth of bulk copies: each block ", $words, " PE `pe`.")]
        /// The warps of a block divide the block's part equally, and the first thread of each warp
        /// starts bulk copies of the warp's share. At the end, all threads call `quiet`. The launch
        /// must request dynamic shared memory.
        #[kernel(max_threads = 1024)]
        pub fn $name(ctx: &Context, to: SymSlice<u64>, from: SymSlice<u64>, pe: u32, iterations: u32, result: DeviceSlice<u64>) {
            let began = gpu::now_ns();
            lend_each_warp(ctx);
            let (to, from) = (share(part(to)), share(part(from)));
            for _ in 0..iterations {
                if gpu::lane() == 0 {
                    ctx.$call(to, from, pe);
                }
            }
            ctx.quiet();
            write(result, began);
        }
    };
}

bulk!(bench_put_bandwidth_bulk, put_nbi, "writes its part of the elements to");
bulk!(bench_get_bandwidth_bulk, get_nbi, "reads its part of the elements from");
