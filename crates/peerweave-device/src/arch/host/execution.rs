//! Indices, barriers, shuffles, votes, shared memory and time of kernel threads on the host. Each
//! function calls the executor.

use super::executor::executor;
use peerweave_types::Dim3;

/// Number of threads in a warp.
pub const WARP_SIZE: u32 = 32;

/// Returns the index of this thread in its block.
#[inline]
pub fn thread_idx() -> Dim3 {
    executor().thread_idx()
}

/// Returns the index of this block in the grid.
#[inline]
pub fn block_idx() -> Dim3 {
    executor().block_idx()
}

/// Returns the number of threads in a block, for each dimension.
#[inline]
pub fn block_dim() -> Dim3 {
    executor().block_dim()
}

/// Returns the number of blocks in the grid, for each dimension.
#[inline]
pub fn grid_dim() -> Dim3 {
    executor().grid_dim()
}

/// Waits until all threads of the block have called this function. Earlier writes of each thread
/// are visible to all these threads after the call.
#[inline]
pub fn sync_threads() {
    executor().sync_threads_or(false);
}

/// Waits like [`sync_threads`]. Returns whether `value` was `true` in any thread of the block.
#[inline]
pub fn sync_threads_or(value: bool) -> bool {
    executor().sync_threads_or(value)
}

/// Waits until all threads in `mask` have called this function. Earlier writes of each thread are
/// visible to all these threads after the call.
#[inline]
pub fn sync_warp(mask: u32) {
    executor().exchange(mask, 0);
}

/// Passes `value` to the warp, and returns the value that lane `from` passed. If `from` is not in
/// `mask`, returns `value`.
#[inline]
pub(super) fn shuffle(mask: u32, value: u32, from: u32) -> u32 {
    let values = executor().exchange(mask, u64::from(value));
    if from < WARP_SIZE && mask >> from & 1 == 1 { values[from as usize] as u32 } else { value }
}

/// Returns the `value` that one lane has passed: the lane with the number `from` modulo 32. All
/// threads in `mask` call this function.
#[inline]
pub fn shuffle_idx(mask: u32, value: u32, from: u32) -> u32 {
    shuffle(mask, value, from % WARP_SIZE)
}

/// Returns the `value` that another lane has passed: the lane whose number is lower by `by`. If
/// there is no such lane, returns this thread's `value`. All threads in `mask` call this function.
#[inline]
pub fn shuffle_up(mask: u32, value: u32, by: u32) -> u32 {
    shuffle(mask, value, super::super::lane().wrapping_sub(by))
}

/// Returns the `value` that another lane has passed: the lane whose number is higher by `by`. If
/// there is no such lane, returns this thread's `value`. All threads in `mask` call this function.
#[inline]
pub fn shuffle_down(mask: u32, value: u32, by: u32) -> u32 {
    shuffle(mask, value, super::super::lane().saturating_add(by))
}

/// Returns the `value` that another lane has passed. The number of that lane is this lane's number
/// XOR `by`. All threads in `mask` call this function.
#[inline]
pub fn shuffle_xor(mask: u32, value: u32, by: u32) -> u32 {
    shuffle(mask, value, super::super::lane() ^ by)
}

/// Returns the mask of those lanes in `mask` whose threads called this function with `true`. All
/// threads in `mask` must call this function.
#[inline]
pub fn vote_ballot(mask: u32, value: bool) -> u32 {
    let values = executor().exchange(mask, u64::from(value));
    (0..WARP_SIZE).filter(|lane| mask >> lane & 1 == 1 && values[*lane as usize] != 0).fold(0, |all, lane| all | 1 << lane)
}

/// Returns the address and the size in bytes of the block's dynamic shared memory. The launch
/// specifies the size.
#[inline]
pub fn dynamic_shared() -> (*mut u8, usize) {
    executor().dynamic_shared()
}

/// Returns the time in nanoseconds, on a clock shared by all threads of the device.
#[inline]
pub fn now_ns() -> u64 {
    executor().now_ns()
}

/// Allows the next kernel of the stream to start early. On the host, the call has no effect,
/// because each kernel starts after the previous kernel has ended.
#[inline]
pub fn start_next_kernel() {}

/// Waits until the earlier kernels of the stream have ended. On the host, the call returns
/// immediately, because a kernel starts only after all earlier kernels have ended.
#[inline]
pub fn wait_for_previous_kernel() {}

/// Lets other threads run. A wait calls this function after each unsuccessful poll.
#[inline]
pub fn pause() {
    executor().pause();
}

/// Ends the kernel with an error. On the host, this function panics.
#[cold]
#[track_caller]
pub fn trap() -> ! {
    panic!("the kernel called trap")
}
