//! The machines on which kernels and protocols run. Each machine has a module: `nvptx` for GPUs,
//! `host` for threads of the host, `loom` for the model checker.
//!
//! The modules define single instructions, and no protocols. `nvptx` and `host` provide the same
//! functions, re-exported here and as [`crate::gpu`]. `loom` only implements [`Word`](crate::Word).
//!
//! Invariant: on GPUs every access to memory that another thread may access is an instruction of
//! `nvptx` with explicit semantics and scope. The atomics of `core` are not used on GPUs, because
//! the compiler translates their read-modify-writes to relaxed instructions with the scope of one
//! GPU.

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

/// Mask of all 32 lanes of a warp.
pub const FULL_WARP: u32 = u32::MAX;

/// Returns the linear index of this thread in its block (x fastest, then y, then z).
#[inline]
pub fn thread_rank() -> u32 {
    block_dim().linear(thread_idx())
}

/// Returns the linear index of this block in the grid (x fastest, then y, then z).
#[inline]
pub fn block_rank() -> u32 {
    grid_dim().linear(block_idx())
}

/// Returns the number of threads in a block.
#[inline]
pub fn block_threads() -> u32 {
    block_dim().count() as u32
}

/// Returns the index of this thread in its warp.
#[inline]
pub fn lane() -> u32 {
    thread_rank() % WARP_SIZE
}

/// Returns the index of this thread's warp in its block.
#[inline]
pub fn warp() -> u32 {
    thread_rank() / WARP_SIZE
}

/// Returns the mask of the existing lanes of this thread's warp. All 32 lanes exist, except in the
/// last warp of a block whose size is not a multiple of 32.
#[inline]
pub fn warp_mask() -> u32 {
    let before = warp() * WARP_SIZE;
    let lanes = block_threads() - before;
    if lanes >= WARP_SIZE { FULL_WARP } else { (1 << lanes) - 1 }
}

/// Returns the mask for operations on a whole warp: all 32 lanes. A GPU treats lanes that do not
/// exist as exited, so no operation waits for such lanes. Because the mask is a constant, a call
/// needs none of the instructions of [`warp_mask`].
#[cfg(target_arch = "nvptx64")]
#[inline]
pub fn warp_members() -> u32 {
    FULL_WARP
}

/// Returns the mask for operations on a whole warp: the lanes that exist in this thread's warp.
#[cfg(not(target_arch = "nvptx64"))]
#[inline]
pub fn warp_members() -> u32 {
    warp_mask()
}

/// Returns whether `value` is `true` in any thread of `mask`. All threads in `mask` must call this
/// function.
#[inline]
pub fn vote_any(mask: u32, value: bool) -> bool {
    vote_ballot(mask, value) != 0
}

/// Returns whether `value` is `true` in all threads of `mask`. All these threads must call this
/// function.
#[inline]
pub fn vote_all(mask: u32, value: bool) -> bool {
    // A ballot of `warp_members` on a GPU lacks the bits of lanes that do not exist.
    vote_ballot(mask, !value) == 0
}

/// Converts a value to the bits of a `bf16`, rounded to nearest, ties to even. The result is the
/// same as that of `bf16::from_f32`. The function has no branches, so the compiler can vectorise
/// and unroll loops that call it.
///
/// ```
/// use peerweave_device::{gpu, types::bf16};
///
/// assert_eq!(gpu::bf16_bits(1.0), bf16::ONE.to_bits());
/// ```
#[inline(always)]
pub fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    // The carry of the rounding must not turn a NaN into another value.
    let quiet = (bits >> 16) | 0x40;
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded }) as u16
}

/// Implements `Word` for an atomic type that has the methods of `core::sync::atomic::AtomicU64`.
/// The parameters are the type, its `Ordering` type and its fence function.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use peerweave_types::bf16;

    #[test]
    fn bf16_bits_equal_those_of_the_crate_half() {
        for high in 0..=u32::from(u16::MAX) {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(high << 16 | low);
                assert_eq!(super::bf16_bits(value), bf16::from_f32(value).to_bits(), "{high:#06x} {low:#06x}");
            }
        }
    }
}
