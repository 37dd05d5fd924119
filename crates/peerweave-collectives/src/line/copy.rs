//! Copy loops whose iterations the threads of one or more blocks divide among themselves. Kernels
//! use the loops to copy lines to and from the slots of rings, and to result buffers.

use crate::epoch::pointer;
use crate::line::LINE_BYTES;
use peerweave_device::gpu::{self, Vector};

/// Calls `load` and then `store` for each index below `n`. The indices are divided among the
/// threads of the block. Each thread loads up to four values before it stores them.
#[inline(always)]
pub(crate) fn each(n: u64, load: impl Fn(u64) -> Vector, store: impl Fn(u64, Vector)) {
    each_of_share(Share::ALL, n, load, store);
}

/// The indices that one block handles if a range of indices is divided among several blocks.
/// Neighbouring blocks handle neighbouring indices.
#[derive(Clone, Copy)]
pub(crate) struct Share {
    /// Index of this block among the blocks that handle the range together.
    pub(crate) index: u64,
    /// Number of blocks that handle the range together.
    pub(crate) of: u64,
}

impl Share {
    /// The share of a block that handles the range alone: all indices of the range.
    pub(crate) const ALL: Self = Self { index: 0, of: 1 };

    /// Returns the first index that this thread handles, and the distance from each index of this
    /// thread to the next.
    #[inline(always)]
    fn position(self) -> (u64, u64) {
        let threads = u64::from(gpu::block_dim().x);
        (self.index * threads + u64::from(gpu::thread_idx().x), self.of * threads)
    }
}

/// Like [`each`], but several blocks divide the indices below `n`. This block handles only the
/// indices in `share`.
#[inline(always)]
pub(crate) fn each_of_share(share: Share, n: u64, load: impl Fn(u64) -> Vector, store: impl Fn(u64, Vector)) {
    const BATCH: usize = 4;
    let (mut index, step) = share.position();
    while index + (BATCH as u64 - 1) * step < n {
        let values: [Vector; BATCH] = core::array::from_fn(|k| load(index + k as u64 * step));
        for k in 0..BATCH {
            store(index + k as u64 * step, values[k]);
        }
        index += BATCH as u64 * step;
    }
    if index + step < n {
        let values = [load(index), load(index + step)];
        store(index, values[0]);
        store(index + step, values[1]);
        index += 2 * step;
    }
    if index < n {
        store(index, load(index));
    }
}

/// Like [`each`], but for values of any type, and in batches of two: each thread loads up to two
/// values before it stores them.
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

/// Like [`each`], but for values of any type, and without batches: each thread stores a value
/// before it loads the next value.
#[inline(always)]
pub(crate) fn one_by_one<V: Copy>(n: u64, load: impl Fn(u64) -> V, store: impl Fn(u64, V)) {
    one_by_one_of_share(Share::ALL, n, load, store);
}

/// Calls `load` and then `store` for each index below `n` in `share`, the indices of this block.
/// Other blocks handle the other indices. Each thread stores a value before it loads the next
/// value.
#[inline(always)]
pub(crate) fn one_by_one_of_share<V: Copy>(share: Share, n: u64, load: impl Fn(u64) -> V, store: impl Fn(u64, V)) {
    let (mut index, step) = share.position();
    while index < n {
        store(index, load(index));
        index += step;
    }
}

/// Stores `value` in line `index` of an array of 16-byte lines. The array starts at `address`, in a
/// slot of a ring or in a result buffer that another rank has offered.
///
/// # Safety
/// The array has more than `index` lines, and this thread may write line `index` now.
#[inline(always)]
pub(crate) unsafe fn store(address: u64, index: u64, value: Vector) {
    // SAFETY: the caller guarantees that the line may be written.
    unsafe { gpu::store_vector_global(pointer(address + index * LINE_BYTES as u64), value) };
}

/// Loads line `index` of an array of 16-byte lines. The array starts at `address`, in a slot of a
/// ring.
///
/// # Safety
/// The array has more than `index` lines, and this thread may read line `index` now.
#[inline(always)]
pub(crate) unsafe fn load(address: u64, index: u64) -> Vector {
    // SAFETY: the caller guarantees that the line may be read. The access is strong, because a
    // cache of the SM may hold the content of the line from an earlier round.
    unsafe { gpu::load_vector_relaxed(pointer::<u8>(address + index * LINE_BYTES as u64).cast_const()) }
}
