//! Indices, barriers, shuffles, votes, shared memory and time, by the executor.

use super::executor::executor;
use peerweave_types::Dim3;

/// Threads of a warp.
pub const WARP_SIZE: u32 = 32;

/// The index of this thread in its block.
#[inline]
pub fn thread_idx() -> Dim3 {
    executor().thread_idx()
}

/// The index of this block in the grid.
#[inline]
pub fn block_idx() -> Dim3 {
    executor().block_idx()
}

/// The shape of a block.
#[inline]
pub fn block_dim() -> Dim3 {
    executor().block_dim()
}

/// The shape of the grid.
#[inline]
pub fn grid_dim() -> Dim3 {
    executor().grid_dim()
}

/// Waits until all threads of the block have called it. What each wrote before is visible to all
/// after.
#[inline]
pub fn sync_threads() {
    executor().sync_threads_or(false);
}

/// [`sync_threads`], and returns whether any thread gave `true`.
#[inline]
pub fn sync_threads_or(value: bool) -> bool {
    executor().sync_threads_or(value)
}

/// Waits until all threads of the warp in `mask` have called it. What each wrote before is visible
/// to all after.
#[inline]
pub fn sync_warp(mask: u32) {
    executor().exchange(mask, 0);
}

/// Returns a value to the warp and returns the one that lane `from` gave; this thread's own where
/// `from` is not in `mask`.
#[inline]
pub(super) fn shuffle(mask: u32, value: u32, from: u32) -> u32 {
    let values = executor().exchange(mask, u64::from(value));
    if from < WARP_SIZE && mask >> from & 1 == 1 { values[from as usize] as u32 } else { value }
}

/// The value of lane `from` modulo 32. All threads in `mask` call it.
#[inline]
pub fn shuffle_idx(mask: u32, value: u32, from: u32) -> u32 {
    shuffle(mask, value, from % WARP_SIZE)
}

/// The value of the lane `by` below this one; its own where there is none. All threads in `mask`
/// call it.
#[inline]
pub fn shuffle_up(mask: u32, value: u32, by: u32) -> u32 {
    shuffle(mask, value, super::super::lane().wrapping_sub(by))
}

/// The value of the lane `by` above this one; its own where there is none. All threads in `mask`
/// call it.
#[inline]
pub fn shuffle_down(mask: u32, value: u32, by: u32) -> u32 {
    shuffle(mask, value, super::super::lane().saturating_add(by))
}

/// The value of the lane whose number is this one's exclusive or `by`. All threads in `mask` call
/// it.
#[inline]
pub fn shuffle_xor(mask: u32, value: u32, by: u32) -> u32 {
    shuffle(mask, value, super::super::lane() ^ by)
}

/// The threads of `mask` that gave `true`, by lane. All threads in `mask` call it.
#[inline]
pub fn vote_ballot(mask: u32, value: bool) -> u32 {
    let values = executor().exchange(mask, u64::from(value));
    (0..WARP_SIZE).filter(|lane| mask >> lane & 1 == 1 && values[*lane as usize] != 0).fold(0, |all, lane| all | 1 << lane)
}

/// The block's shared memory whose size was given at the launch: where it begins, and its bytes.
#[inline]
pub fn dynamic_shared() -> (*mut u8, usize) {
    executor().dynamic_shared()
}

/// Nanoseconds on a clock that all threads of the device share.
#[inline]
pub fn now_ns() -> u64 {
    executor().now_ns()
}

/// Lets other threads run: called by a wait that found nothing.
#[inline]
pub fn pause() {
    executor().pause();
}

/// Ends the kernel with an error that names no place. On the host: panics.
#[cold]
#[track_caller]
pub fn trap() -> ! {
    panic!("the kernel called trap")
}
