//! The epoch: the number of launches before the current one. Kernels keep a counter of their
//! launches in device memory, so that the launches of a replayed graph are counted too.
//!
//! All blocks of a launch read the same epoch without waiting for each other. Each block adds a
//! number, its share, to the counter after its threads have read the counter. The shares of one
//! launch add up to [`SHARES`]. Before the last block has added its share, the sum is less than
//! [`SHARES`]. So the epoch, which is the counter divided by [`SHARES`], changes only after all
//! blocks have read the counter. The next launch reads the counter after this launch has ended.
//!
//! # Why two banks are enough
//! Each staging area has two banks of lines. A launch uses bank `epoch % 2`, so a rank writes into
//! the same bank of another rank again two launches later. In the launch in between, the rank has
//! waited for at least one line from that other rank. The other rank sent this line after its
//! previous launch had ended. Before the end of that launch, it had put the sentinel back into
//! every line of the bank.
//!
//! This argument holds for any sizes and shapes under two conditions. Each call exchanges a line
//! between every two ranks in both directions. Each kernel begins its work after the previous
//! kernel in the stream has ended.

use peerweave_device::gpu::{self, Access, Gpu, Reduce, Relaxed};

/// Amount by which one launch increases the counter: the sum of the shares that its blocks add.
pub const SHARES: u64 = 1 << 16;

/// Returns the epoch: the number of earlier launches that this counter has counted.
///
/// # Safety
/// `counter` is the address of a word in this device's memory. The word is accessed only as the
/// counter of launches that run one after the other.
#[inline(always)]
pub(crate) unsafe fn read(counter: u64) -> u64 {
    // SAFETY: the caller guarantees a word that is accessed only atomically.
    unsafe { <u64 as Access<Gpu>>::load_relaxed(pointer(counter)) / SHARES }
}

/// Adds this block's share to the counter. All threads of the block call this function, after they
/// have read the epoch.
///
/// # Safety
/// As for [`read`]: `counter` is the address of a word that only counts launches.
#[inline(always)]
pub(crate) unsafe fn end(counter: u64) {
    gpu::sync_threads();
    if gpu::thread_rank() == 0 {
        // SAFETY: the caller guarantees the counter.
        unsafe { add_share(counter) };
    }
}

/// Adds this block's share to the counter. One thread of the block calls this function, after all
/// threads of the block have read the epoch.
///
/// # Safety
/// As for [`read`]: `counter` is the address of a word that only counts launches.
#[inline(always)]
pub(crate) unsafe fn add_share(counter: u64) {
    let blocks = gpu::grid_dim().count();
    let share = if gpu::block_rank() == 0 { SHARES - (blocks - 1) } else { 1 };
    // SAFETY: the caller guarantees a word that is accessed only atomically.
    unsafe { <u64 as Reduce<Gpu, Relaxed>>::add(pointer(counter), share) };
}

/// Returns the pointer for an address that the host has passed.
#[inline(always)]
pub(crate) fn pointer<T>(address: u64) -> *mut T {
    core::ptr::with_exposed_provenance_mut(address as usize)
}
