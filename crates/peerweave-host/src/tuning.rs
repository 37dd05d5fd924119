//! The numbers that decide which algorithm serves which size, in one place, each with where it comes from.
//!
//! All were measured on the machine of `bench-results/`; they are in bytes. Nothing here is needed for correctness.

/// What one entry line carries besides its signature: an operation with at most this much per rank needs no other memory.
pub(crate) const LINE_BYTES: usize = crate::line::PAYLOAD_BYTES;

/// Up to here the operands travel through the staging area that goes with the entry: one synchronisation instead of two.
/// Limited by every rank reading every other rank's operands.
pub(crate) fn staged_limit(n_ranks: usize) -> usize {
    if n_ranks <= 2 { 2048 } else { 4096 }
}

/// Bytes of one staging area: a round of an operation on private buffers. Large enough to hide its two synchronisations, small enough
/// for the areas of all ranks to stay in the shared cache.
pub(crate) const STAGE_BYTES: usize = 256 << 10;

/// From this many ranks on, an all-reduce in rounds divides the reduction among the ranks, for one synchronisation more per block; below, every
/// rank reduces everything.
pub(crate) const SHARED_REDUCTION_RANKS: usize = 4;

/// Largest message of send/recv that travels inside its mailbox slot.
pub(crate) const EAGER_BYTES: usize = 8 << 10;

/// Slots of a mailbox: how many messages, or fragments of one, a sender can be ahead.
pub(crate) const MAILBOX_SLOTS: usize = 4;

/// From this footprint on (all bytes that all ranks read and write) stores bypass the caches: the data would not stay there anyway.
pub(crate) const STREAMING_FOOTPRINT: usize = 40 << 20;

/// From here on a single put or get bypasses the caches.
pub(crate) const STREAMING_COPY: usize = 16 << 20;

/// Teams of up to so many ranks read each other's private buffers also where all ranks need the same bytes.
pub(crate) const ATTACH_RANKS: usize = 3;

/// Blocks in which memory of another process is read: they must stay in the private cache.
pub(crate) const ATTACH_BLOCK: usize = 128 << 10;
