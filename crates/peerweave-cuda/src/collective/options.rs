//! Options of the collectives of a team.

use super::staging;
use crate::error::{CudaError, misuse};

/// Options of a team's collectives. All PEs pass the same options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CollectivesOptions {
    /// Size in bytes of each of the two banks, through which small and medium calls send their
    /// data. An all_reduce of `n` bytes by `r` ranks needs `n * r` bytes of a bank if it takes one
    /// step, and `2 * n` bytes if it takes two steps. Larger calls use the rings.
    pub bank_bytes: u64,
    /// Size in bytes of a slot of a ring, a multiple of 1024. Each block has six slots for
    /// reductions.
    pub slot_bytes: u64,
    /// Maximum number of blocks of a kernel, and thus of multiprocessors that the kernel uses.
    pub max_blocks: u32,
    /// Whether the kernel of a small call may begin before the previous kernel in the stream has
    /// ended, if the device supports this (compute capability 9.0 and later). The route table has
    /// the size limit: 1 MiB in the built-in tables.
    pub programmatic: bool,
}

impl Default for CollectivesOptions {
    /// Returns banks of 32 MiB, slots of 32 KiB, at most 256 blocks, with programmatic start. These
    /// options need 153 MiB of the heap.
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
            return Err(misuse(call, "bank_bytes", self.bank_bytes, "at least 4096"));
        }
        if self.slot_bytes < 1024 || !self.slot_bytes.is_multiple_of(1024) {
            return Err(misuse(call, "slot_bytes", self.slot_bytes, "a multiple of 1024, at least 1024"));
        }
        if self.max_blocks == 0 || self.max_blocks > 1024 {
            return Err(misuse(call, "max_blocks", self.max_blocks, "1 to 1024"));
        }
        Ok(())
    }
}
