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
//! Each staging area has two banks of lines. The launch with epoch `n` uses bank `n % 2`. Until the
//! data of a line arrives, the line holds a fixed bit pattern, the sentinel. After the receiver has
//! read a line, it writes the sentinel to the line again. A sender must not write to the line
//! earlier.
//!
//! For example, rank A writes to a bank of rank B in launch `n`, and to the same bank in launch
//! `n + 2`. The following steps happen in this order:
//!
//! 1. In launch `n`, B reads the lines of the bank, and then writes the sentinel to these lines.
//! 2. In launch `n + 1`, B sends a line to A, and A waits for that line.
//! 3. In launch `n + 2`, A writes to the bank of B. The lines hold the sentinel again.
//!
//! This argument holds for any sizes and shapes under two conditions. Each call exchanges a line
//! between every two ranks in both directions. Each kernel begins its work after the previous
//! kernel in the stream has ended.

use peerweave_device::gpu::{self, Access, Gpu, Reduce, Relaxed};

/// Number by which each launch increases the counter of launches. The blocks of a launch add this
/// number together: each block adds its share.
pub const SHARES: u64 = 1 << 16;

/// Returns the epoch of this launch: the number of earlier launches that the word at `counter` has
/// counted.
///
/// # Safety
/// `counter` is the address of a word in this device's memory. The word is accessed only as a
/// counter of launches. These launches run one after the other.
#[inline(always)]
pub(crate) unsafe fn read(counter: u64) -> u64 {
    // SAFETY: the caller guarantees a word that is accessed only atomically.
    unsafe { <u64 as Access<Gpu>>::load_relaxed(pointer(counter)) / SHARES }
}

/// Counts this launch: adds the share of this block ([`SHARES`]) to the counter of launches. All
/// threads of the block must call this function, after they have read the epoch.
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

/// Counts this launch: adds the share of this block ([`SHARES`]) to the counter of launches. One
/// thread of the block must call this function, after all threads of the block have read the epoch.
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
