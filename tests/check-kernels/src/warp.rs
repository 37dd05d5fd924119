//! Checks what the threads of a block do together without other PEs: indices, barriers, shuffles,
//! votes and shared memory.

use crate::Check;
use peerweave_device::prelude::*;

/// Returns a value that depends on the thread, for exchanges among the threads of a warp.
fn value(thread: u32) -> u32 {
    0x5a00_0000 + 3 * thread
}

/// Checks the functions of a warp and of a block. The launch has at least one block, with 1024
/// bytes of dynamic shared memory for each block.
#[kernel]
pub fn check_warp(ctx: &Context, result: SymSlice<u64>) -> Result<(), Failed> {
    let check = Check::new(ctx, result);
    let same = |line, found: u32, expected: u32| check.same(line, u64::from(found), u64::from(expected));
    let started = gpu::now_ns();

    // The launch has one dimension.
    let (thread, threads) = (gpu::thread_idx().x, gpu::block_dim().x);
    same(line!(), gpu::thread_rank(), thread);
    same(line!(), gpu::block_threads(), threads);
    same(line!(), gpu::block_rank(), gpu::block_idx().x);
    same(line!(), (gpu::block_idx().x < gpu::grid_dim().x) as u32, 1);
    let (lane, first) = (thread % 32, thread / 32 * 32);
    same(line!(), gpu::lane(), lane);
    same(line!(), gpu::warp(), thread / 32);

    // `mask` has a bit for each thread of the warp. The last warp of the block may not be full.
    let lanes = (threads - first).min(32);
    let mask = gpu::warp_mask();
    same(line!(), mask, if lanes == 32 { u32::MAX } else { (1 << lanes) - 1 });
    let mine = value(thread);
    for by in 0..32 {
        same(line!(), gpu::shuffle_idx(mask, mine, by % lanes), value(first + by % lanes));
        let lower = if lane >= by { thread - by } else { thread };
        same(line!(), gpu::shuffle_up(mask, mine, by), value(lower));
        // The value of a lane below 32 without a thread is unspecified.
        let (down, xor) = (gpu::shuffle_down(mask, mine, by), gpu::shuffle_xor(mask, mine, by));
        if lane + by < lanes {
            same(line!(), down, value(thread + by));
        } else if lane + by >= 32 {
            same(line!(), down, mine);
        }
        if lane ^ by < lanes {
            same(line!(), xor, value(first + (lane ^ by)));
        }
        let holds = lane >= by;
        let ballot = gpu::vote_ballot(mask, holds);
        same(line!(), ballot, mask & (u32::MAX << by));
        same(line!(), gpu::vote_any(mask, holds) as u32, (by < lanes) as u32);
        same(line!(), gpu::vote_all(mask, holds) as u32, (by == 0) as u32);
    }
    // `warp_members` may contain lanes without a thread.
    let all = gpu::warp_members();
    same(line!(), gpu::vote_all(all, true) as u32, 1);
    same(line!(), gpu::vote_all(all, lane != lanes - 1) as u32, 0);
    same(line!(), gpu::vote_any(all, lane == lanes - 1) as u32, 1);
    same(line!(), gpu::vote_any(all, false) as u32, 0);

    // One thread of the block decides the result of the barrier.
    for chosen in [0, threads - 1] {
        same(line!(), gpu::sync_threads_or(thread == chosen) as u32, 1);
    }
    same(line!(), gpu::sync_threads_or(false) as u32, 0);

    // Writes of each thread to shared memory are visible to the warp and to the block after their
    // barriers.
    let shared = SharedSlice::<u32>::dynamic();
    for round in 0..8 {
        shared.write(thread as usize, value(thread) + round);
        gpu::sync_warp(all);
        let neighbor = first + (lane + 1) % lanes;
        same(line!(), shared.read(neighbor as usize), value(neighbor) + round);
        gpu::sync_threads();
        let neighbor = (thread + 1 + round) % threads;
        same(line!(), shared.read(neighbor as usize), value(neighbor) + round);
        gpu::sync_threads();
    }
    same(line!(), (gpu::now_ns() >= started) as u32, 1);
    check.finish();
    Ok(())
}
