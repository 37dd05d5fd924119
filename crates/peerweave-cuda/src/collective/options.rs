//! Options of the collectives of a team.

use super::staging;
use crate::error::{CudaError, misuse};

/// Options for the collectives of a team. All PEs must pass the same options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CollectivesOptions {
    /// Size in bytes of each of the two banks through which small and medium calls send their data.
    /// An all_reduce of `n` bytes among `r` ranks needs banks of `n * r` bytes for the one-shot
    /// algorithm. The two-shot algorithm needs banks of `2 * n` bytes. Larger calls use rings of
    /// slots.
    pub bank_bytes: u64,
    /// Size of a slot in bytes. Must be a multiple of 1024. Large reductions send their data
    /// through rings of slots, and each block of a kernel has a ring of six slots. Large messages
    /// use other rings. The slots of these rings have twice this size.
    pub slot_bytes: u64,
    /// Maximum number of blocks in a kernel of a collective. A kernel uses at most as many SMs as
    /// blocks.
    pub max_blocks: u32,
    /// Whether the kernel of a small call may start before the previous kernel in the stream has
    /// ended (programmatic dependent launch). Requires compute capability 9.0 or later; other
    /// devices ignore this option. The route table sets the size up to which a call is small: 1 MiB
    /// in the built-in tables.
    pub programmatic: bool,
}

impl Default for CollectivesOptions {
    /// Returns options with banks of 32 MiB, slots of 32 KiB, at most 256 blocks, and programmatic
    /// dependent launch. With these options, a team needs 153 MiB of the heap.
    fn default() -> Self {
        Self { bank_bytes: 32 << 20, slot_bytes: 32 << 10, max_blocks: 256, programmatic: true }
    }
}

impl CollectivesOptions {
    /// Returns the number of bytes that the collectives of one team allocate on every PE's
    /// symmetric heap.
    pub fn heap_bytes(&self) -> u64 {
        staging::area_bytes(self)
    }

    pub(super) fn check(&self, call: &'static str) -> Result<(), CudaError> {
        if self.bank_bytes < 4096 {
            return Err(misuse(call, "bank_bytes", self.bank_bytes, "at least 4096 bytes"));
        }
        if self.slot_bytes < 1024 || !self.slot_bytes.is_multiple_of(1024) {
            return Err(misuse(call, "slot_bytes", self.slot_bytes, "a multiple of 1024 bytes, at least 1024"));
        }
        if self.max_blocks == 0 || self.max_blocks > 1024 {
            return Err(misuse(call, "max_blocks", self.max_blocks, "1 to 1024 blocks"));
        }
        Ok(())
    }
}
