//! barrier: no rank continues before all ranks have arrived.

use crate::wait::bank;
use crate::{Call, epoch, line};
use peerweave_device::gpu::{Fence, Sys};
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

/// Waits for all ranks. After the kernel, accesses that a rank made earlier in its stream are
/// visible to all ranks. The grid has one block with at least one thread for each rank.
#[kernel(max_threads = 32, unchecked)]
pub fn barrier_8(ctx: &Context, call: Call) -> Result<(), Failed> {
    if !call.begin() {
        return Ok(());
    }
    let thread = gpu::thread_idx().x;
    let has_peer = thread > 0 && thread < call.ranks;
    // SAFETY: the launch guarantees the counter.
    let epoch = unsafe { epoch::read(call.counter) };
    // SAFETY: the launch guarantees areas with banks that have a line for each rank.
    let (own, peer) = unsafe { (bank(&call, 0, epoch), bank(&call, if has_peer { thread } else { 0 }, epoch)) };
    if has_peer {
        <Sys as Fence>::acq_rel();
        peer.push(u64::from(call.rank), [0; 2]);
    }
    // SAFETY: as above.
    unsafe { epoch::end(call.counter) };
    if has_peer {
        let at = u64::from(call.rank_behind(thread));
        let look = || line::has_arrived(own.look(at), call.sentinel).then_some(());
        ctx.poll(KernelOp::Barrier, look, || call.pe_behind(thread))?;
        own.push(at, call.sentinel);
        <Sys as Fence>::acq_rel();
    }
    Ok(())
}

/// Returns the kernel for a number of ranks; `None` for more than [`MAX_RANKS`](crate::MAX_RANKS).
#[cfg(not(target_arch = "nvptx64"))]
pub fn kernel(ranks: u32) -> Option<&'static peerweave_device::launch::Kernel<(Call,)>> {
    (1..=crate::MAX_RANKS as u32).contains(&ranks).then_some(&barrier_8::KERNEL)
}
