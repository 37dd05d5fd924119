//! The collective barrier: no rank continues before all ranks have called it.

use crate::epoch::pointer;
use crate::{Call, LINE_BYTES, epoch};
use peerweave_device::gpu::{Access, Sys};
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

/// Waits until all ranks run this kernel. When the kernel ends, all ranks see the accesses that
/// each rank made earlier in its stream. Launch one block with at least one thread for each rank.
#[kernel(max_threads = 32, unchecked, ptx = crate::PTX)]
pub fn barrier_8(ctx: &Context, call: Call) -> Result<(), Failed> {
    if !call.begin() {
        return Ok(());
    }
    let thread = gpu::thread_idx().x;
    let has_peer = thread > 0 && thread < call.ranks;
    // SAFETY: the launch guarantees the counter.
    let epoch = unsafe { epoch::read(call.counter) };
    // Returns the address of the word that rank `rank` writes in the bank of the rank `k` places
    // after this rank. A release and an acquire of one word cost less than two fences. This thread
    // stores nothing between the release and the acquire.
    let word = |k: u32, rank: u32| {
        let bank = call.area_after(k) + (epoch & 1) * call.bank_bytes;
        pointer::<u64>(bank + u64::from(rank) * LINE_BYTES as u64)
    };
    if has_peer {
        // SAFETY: the launch guarantees areas with banks that have a line for each rank. While a
        // barrier runs, the first word of each line is accessed only atomically.
        unsafe { <u64 as Access<Sys>>::store_release(word(thread, call.rank), !call.sentinel[0]) };
    }
    // SAFETY: the launch guarantees the counter.
    unsafe { epoch::end(call.counter) };
    if has_peer {
        let own = word(0, call.rank_after(thread));
        // SAFETY: the word is in this rank's area. During a barrier it is accessed only atomically.
        let look = || (unsafe { <u64 as Access<Sys>>::load_acquire(own) } != call.sentinel[0]).then_some(());
        ctx.poll(KernelOp::Barrier, look, || call.pe_after(thread))?;
        // SAFETY: the word is in this rank's area. The peer writes the word again only after the
        // peer has seen a later line of this rank.
        unsafe { <u64 as Access<Sys>>::store_relaxed(own, call.sentinel[0]) };
    }
    Ok(())
}

/// Returns the barrier kernel for `ranks` ranks, or `None` if `ranks` is not 1 to
/// [`MAX_RANKS`](crate::MAX_RANKS).
#[cfg(not(target_arch = "nvptx64"))]
pub fn kernel(ranks: u32) -> Option<&'static peerweave_device::launch::Kernel<(Call,)>> {
    (1..=crate::MAX_RANKS as u32).contains(&ranks).then_some(&barrier_8::KERNEL)
}
