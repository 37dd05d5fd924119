//! The machines that kernels and protocols run on, one leaf each: GPUs, threads of the host, the
//! model checker.
//!
//! A leaf says what one instruction does, and no protocol is here. `nvptx` and `host` offer the
//! same functions, re-exported here and as [`crate::gpu`]. `loom` has words alone.
//!
//! Invariant: on GPUs every access to memory that another thread may access is an instruction of
//! `nvptx` that states its semantics and its scope. The atomics of `core` are not words there:
//! their read-modify-writes become relaxed instructions of the scope of one GPU.

#[cfg(not(target_arch = "nvptx64"))]
pub mod host;
#[cfg(loom)]
mod loom;
#[cfg(target_arch = "nvptx64")]
mod nvptx;
pub mod ops;

#[cfg(not(target_arch = "nvptx64"))]
pub use host::*;
#[cfg(target_arch = "nvptx64")]
pub use nvptx::*;
pub use ops::{Access, AcqRel, Acquire, Cta, Fence, FloatAdd, Gpu, Reduce, Relaxed, Release, Rmw, Sys};

/// All lanes of a warp.
pub const FULL_WARP: u32 = u32::MAX;

/// The number of this thread in its block, counted along x, then y, then z.
#[inline]
pub fn thread_rank() -> u32 {
    block_dim().linear(thread_idx())
}

/// The number of this block in the grid, counted along x, then y, then z.
#[inline]
pub fn block_rank() -> u32 {
    grid_dim().linear(block_idx())
}

/// Number of threads of a block.
#[inline]
pub fn block_threads() -> u32 {
    block_dim().count() as u32
}

/// The number of this thread in its warp.
#[inline]
pub fn lane() -> u32 {
    thread_rank() % WARP_SIZE
}

/// The number of this thread's warp in its block.
#[inline]
pub fn warp() -> u32 {
    thread_rank() / WARP_SIZE
}

/// The lanes of this thread's warp that exist: all, but in the last warp of a block whose size is
/// no multiple of 32.
#[inline]
pub fn warp_mask() -> u32 {
    let before = warp() * WARP_SIZE;
    let lanes = block_threads() - before;
    if lanes >= WARP_SIZE { FULL_WARP } else { (1 << lanes) - 1 }
}

/// The lanes that a warp synchronises and votes with: all of them. On a GPU lanes that do not exist
/// have exited, and neither waits for them; a number that is known saves the instructions of
/// [`warp_mask`] in every call.
#[cfg(target_arch = "nvptx64")]
#[inline]
pub fn warp_members() -> u32 {
    FULL_WARP
}

/// The lanes that a warp synchronises and votes with.
#[cfg(not(target_arch = "nvptx64"))]
#[inline]
pub fn warp_members() -> u32 {
    warp_mask()
}

/// Returns whether any thread in `mask` gave `true`. All threads in `mask` call it.
#[inline]
pub fn vote_any(mask: u32, value: bool) -> bool {
    vote_ballot(mask, value) != 0
}

/// Returns whether all threads in `mask` gave `true`. All threads in `mask` call it.
#[inline]
pub fn vote_all(mask: u32, value: bool) -> bool {
    vote_ballot(mask, value) == mask
}

/// Implements `Word` for an atomic type with the methods of `core::sync::atomic::AtomicU64`, given
/// the `Ordering` that it takes and the fence that goes with it.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! word_by_atomic {
    ($atomic:ty, $ordering:ty, $fence:path) => {
        impl $crate::Word for $atomic {
            #[inline]
            fn load_relaxed(&self) -> u64 {
                self.load(<$ordering>::Relaxed)
            }

            #[inline]
            fn load_acquire(&self) -> u64 {
                self.load(<$ordering>::Acquire)
            }

            #[inline]
            fn store_relaxed(&self, value: u64) {
                self.store(value, <$ordering>::Relaxed);
            }

            #[inline]
            fn store_release(&self, value: u64) {
                self.store(value, <$ordering>::Release);
            }

            #[inline]
            fn add_release(&self, value: u64) {
                self.fetch_add(value, <$ordering>::Release);
            }

            #[inline]
            fn fence_release() {
                $fence(<$ordering>::Release);
            }

            #[inline]
            fn fence_acquire() {
                $fence(<$ordering>::Acquire);
            }
        }
    };
}
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) use word_by_atomic;
