//! The count of launches, in memory of the device, so that a replayed graph goes on counting.
//!
//! All blocks of a launch read the same epoch, though none waits for another: each adds its share
//! to the counter once its threads have read it, and the shares of one launch add up to [`SHARES`].
//! While one block has not read, the sum of the others is less than that, so the counter divided by
//! [`SHARES`] changes only after the last block has read it. The next launch reads when this one
//! has ended.
//!
//! # Why two banks are enough
//! A launch uses bank `epoch % 2`. A rank writes into a bank of another rank again two launches
//! later. The launch between has awaited at least one line of each rank, which that rank sent after
//! its own launch before had ended, and with it had put the sentinel back into every line of the
//! bank. This holds for any sizes and shapes, as long as each call exchanges a line between each
//! two ranks in both directions, and a kernel begins its work after the one before it in the stream
//! has ended.

use peerweave_device::gpu::{self, Access, Gpu, Reduce, Relaxed};

/// What the blocks of one launch add to the counter together.
pub const SHARES: u64 = 1 << 16;

/// The number of launches that have ended.
///
/// # Safety
/// The address is that of a word of this device's memory that launches one after the other use as
/// their counter and nothing else accesses.
#[inline(always)]
pub(crate) unsafe fn read(counter: u64) -> u64 {
    // SAFETY: the caller promises a word that is accessed atomically alone.
    unsafe { <u64 as Access<Gpu>>::load_relaxed(pointer(counter)) / SHARES }
}

/// Adds this block's share. All threads of the block call it, after they have read the epoch.
///
/// # Safety
/// As for [`read`].
#[inline(always)]
pub(crate) unsafe fn end(counter: u64) {
    gpu::sync_threads();
    if gpu::thread_rank() == 0 {
        // SAFETY: the caller's promise.
        unsafe { add_share(counter) };
    }
}

/// Adds this block's share. One thread of the block calls it, after all have read the epoch.
///
/// # Safety
/// As for [`read`].
#[inline(always)]
pub(crate) unsafe fn add_share(counter: u64) {
    let blocks = gpu::grid_dim().count();
    let share = if gpu::block_rank() == 0 { SHARES - (blocks - 1) } else { 1 };
    // SAFETY: the caller promises a word that is accessed atomically alone.
    unsafe { <u64 as Reduce<Gpu, Relaxed>>::add(pointer(counter), share) };
}

/// The word at an address that the host has given.
#[inline(always)]
pub(crate) fn pointer<T>(address: u64) -> *mut T {
    core::ptr::with_exposed_provenance_mut(address as usize)
}
