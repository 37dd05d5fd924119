//! The sizes at which operations change their algorithm. The sizes of staging areas and mailboxes
//! are in `memory/layout.rs`.
//!
//! All sizes are in bytes and were measured on the machines of `bench-results/`. Correctness does
//! not depend on them.

/// Returns the size up to which operands pass through the staging area that belongs to the entry,
/// which takes one synchronization instead of two. The limit exists because every rank reads the
/// operands of every other rank.
pub(crate) fn staged_limit(n_ranks: usize) -> usize {
    if n_ranks <= 2 { 2048 } else { 4096 }
}

/// In teams of at least this many ranks, an all-reduce in rounds divides the reduction among the
/// ranks, which takes one more synchronization per block. In smaller teams every rank reduces
/// everything.
pub(crate) const SHARED_REDUCTION_RANKS: usize = 4;

/// If all ranks together read and write at least this many bytes, stores bypass the caches.
pub(crate) const STREAMING_FOOTPRINT: usize = 40 << 20;

/// A single put or get of at least this size bypasses the caches.
pub(crate) const STREAMING_COPY: usize = 16 << 20;

/// Teams of at most this many ranks read the private buffers of each other even if all ranks need
/// the same bytes.
pub(crate) const CROSS_MEMORY_RANKS: usize = 3;

/// The size of the blocks in which memory of another process is read. A block must fit into the
/// processor's private cache.
pub(crate) const CROSS_MEMORY_BLOCK: usize = 128 << 10;
