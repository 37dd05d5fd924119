//! Copies of lines by the threads of a block, into and out of the slots of rings.

use crate::epoch::pointer;
use crate::line::LINE_BYTES;
use peerweave_device::gpu::{self, Vector};

/// Calls `load` and then `store` for each index below `n`. The threads of the block share the
/// indices; each thread makes up to four loads before as many stores.
#[inline(always)]
pub(crate) fn each(n: u64, load: impl Fn(u64) -> Vector, store: impl Fn(u64, Vector)) {
    const BATCH: usize = 4;
    let threads = u64::from(gpu::block_dim().x);
    let mut index = u64::from(gpu::thread_idx().x);
    while index + (BATCH as u64 - 1) * threads < n {
        let values: [Vector; BATCH] = core::array::from_fn(|k| load(index + k as u64 * threads));
        for k in 0..BATCH {
            store(index + k as u64 * threads, values[k]);
        }
        index += BATCH as u64 * threads;
    }
    if index + threads < n {
        let values = [load(index), load(index + threads)];
        store(index, values[0]);
        store(index + threads, values[1]);
        index += 2 * threads;
    }
    if index < n {
        store(index, load(index));
    }
}

/// Like [`each`], with two loads of any kind before two stores.
#[inline(always)]
pub(crate) fn two_by_two<V: Copy>(n: u64, load: impl Fn(u64) -> V, store: impl Fn(u64, V)) {
    let threads = u64::from(gpu::block_dim().x);
    let mut index = u64::from(gpu::thread_idx().x);
    while index + threads < n {
        let (first, second) = (load(index), load(index + threads));
        store(index, first);
        store(index + threads, second);
        index += 2 * threads;
    }
    if index < n {
        store(index, load(index));
    }
}

/// Like [`each`], but a thread handles one index at a time.
#[inline(always)]
pub(crate) fn one_by_one<V: Copy>(n: u64, load: impl Fn(u64) -> V, store: impl Fn(u64, V)) {
    let mut index = u64::from(gpu::thread_idx().x);
    while index < n {
        store(index, load(index));
        index += u64::from(gpu::block_dim().x);
    }
}

/// # Safety
/// At the address there are more than `index` lines of a ring that this thread may write now.
#[inline(always)]
pub(crate) unsafe fn store(address: u64, index: u64, value: Vector) {
    // SAFETY: the caller guarantees that the line may be written.
    unsafe { gpu::store_vector_global(pointer(address + index * LINE_BYTES as u64), value) };
}

/// # Safety
/// At the address there are more than `index` lines of a ring that this thread may read now.
#[inline(always)]
pub(crate) unsafe fn load(address: u64, index: u64) -> Vector {
    // SAFETY: the caller guarantees that the line may be read. The access is strong, because a
    // cache of the SM may hold the content of the line from an earlier round.
    unsafe { gpu::load_vector_relaxed(pointer::<u8>(address + index * LINE_BYTES as u64).cast_const()) }
}
