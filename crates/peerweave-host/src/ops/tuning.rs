//! The sizes at which operations change their algorithm. The sizes of staging areas and mailboxes are
//! in `memory/layout.rs`.
//!
//! All sizes are in bytes and were measured on the machines of `bench-results/`. Correctness does not
//! depend on them.

/// Up to here the operands travel through the staging area that goes with the entry: one synchronisation instead of two.
/// Limited by every rank reading every other rank's operands.
pub(crate) fn staged_limit(n_ranks: usize) -> usize {
    if n_ranks <= 2 { 2048 } else { 4096 }
}

/// From this many ranks on, an all-reduce in rounds divides the reduction among the ranks, for one synchronisation more per block; below, every
/// rank reduces everything.
pub(crate) const SHARED_REDUCTION_RANKS: usize = 4;

/// From this footprint on (all bytes that all ranks read and write) stores bypass the caches: the data would not stay there anyway.
pub(crate) const STREAMING_FOOTPRINT: usize = 40 << 20;

/// From here on a single put or get bypasses the caches.
pub(crate) const STREAMING_COPY: usize = 16 << 20;

/// Teams of up to so many ranks read each other's private buffers also where all ranks need the same bytes.
pub(crate) const ATTACH_RANKS: usize = 3;

/// Blocks in which memory of another process is read: they must stay in the private cache.
pub(crate) const ATTACH_BLOCK: usize = 128 << 10;
