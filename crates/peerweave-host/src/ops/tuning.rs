//! The sizes and numbers of ranks at which operations change their algorithm. The sizes of staging
//! areas and mailboxes are in `memory/layout.rs`.
//!
//! All sizes are in bytes. The values were measured on the machines of `bench-results/`.
//! Correctness does not depend on them.

/// Returns the maximum size of operands that each rank copies to its staging area when it enters a
/// collective. Such a collective takes one synchronization instead of two. The size is limited
/// because every rank reads the operands of every other rank.
pub(crate) fn staged_limit(n_ranks: usize) -> usize {
    if n_ranks <= 2 { 2048 } else { 4096 }
}

/// Minimum number of ranks at which an all-reduce in rounds divides the reduction among the ranks.
/// Dividing the reduction takes one more synchronization per block. In smaller teams every rank
/// reduces all elements.
pub(crate) const SHARED_REDUCTION_RANKS: usize = 4;

/// Minimum number of bytes that all ranks together read and write in a collective whose stores
/// bypass the caches.
pub(crate) const STREAMING_FOOTPRINT: usize = 40 << 20;

/// Minimum size of a single put or get that bypasses the caches.
pub(crate) const STREAMING_COPY: usize = 16 << 20;

/// Maximum size of a team whose ranks read each other's private buffers even if all ranks need the
/// same bytes.
pub(crate) const CROSS_MEMORY_RANKS: usize = 3;

/// Size of the blocks in which memory of another process is read. A block must fit into the private
/// cache of the processor.
pub(crate) const CROSS_MEMORY_BLOCK: usize = 128 << 10;
