//! Thresholds at which operations change to another algorithm. A threshold is a size in bytes or a
//! number of ranks. The sizes of staging areas and mailboxes are in `memory/layout.rs`.
//!
//! The values were measured on the machines of `bench-results/`. They affect only performance. The
//! only exception is [`staged_limit`]: a small operand must fit in a staging area.

/// Returns the maximum size of a small operand, in bytes. A rank copies a small operand to its
/// staging area when it enters a collective. The collective then takes one synchronization instead
/// of two. After such a copy, every rank reads the operands of all other ranks. This takes too long
/// for larger operands.
pub(crate) fn staged_limit(n_ranks: usize) -> usize {
    if n_ranks <= 2 { 2048 } else { 4096 }
}

/// Minimum number of ranks that divide the work of an all-reduce on large private buffers. Such an
/// all-reduce passes the operands through the staging areas block by block. Each rank reduces its
/// share of every block. This costs one more synchronization per block. In smaller teams, every
/// rank reduces all elements.
pub(crate) const SHARED_REDUCTION_RANKS: usize = 4;

/// Minimum size of a collective whose stores bypass the caches. The size is the number of bytes
/// that all ranks together read and write.
pub(crate) const STREAMING_FOOTPRINT: usize = 40 << 20;

/// Minimum size of a put, a get or a point-to-point message whose copy bypasses the caches, in
/// bytes.
pub(crate) const STREAMING_COPY: usize = 16 << 20;

/// Maximum number of ranks in a team whose all-reduces, reduce-scatters, broadcasts and all-gathers
/// read the private buffers of other processes directly. In larger teams, these collectives copy
/// data through staging areas, which stay in a cache.
pub(crate) const CROSS_MEMORY_RANKS: usize = 3;

/// Maximum size, in bytes, of a block in a reduction that reads the private memory of other
/// processes. A rank copies one block of each operand to its staging areas, and then reduces these
/// blocks. A block must fit into the private cache of a processor core.
pub(crate) const CROSS_MEMORY_BLOCK: usize = 128 << 10;
