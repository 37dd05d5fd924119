//! Manages the addresses of a device's plain allocations: one shared mapping that is divided into
//! pieces. Pieces begin and end at page boundaries, so that the MMU of the host protects them.
//! Invariant: bytes outside every live piece can be neither read nor written, and each piece is
//! followed by such bytes.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

use super::files;
use super::mapping::{self, PAGE_BYTES};
use crate::abi::{Code, Result};

/// The mapping of one device.
pub(crate) struct Arena {
    ordinal: usize,
    length_bytes: u64,
    /// Created by the first allocation.
    mapping: Option<Mapping>,
    /// Lengths of the free pieces, by offset.
    free: BTreeMap<u64, u64>,
}

struct Mapping {
    file: OwnedFd,
    base: u64,
}

impl Arena {
    pub(crate) fn new(ordinal: usize, budget_bytes: u64) -> Arena {
        // The arena has four times as many addresses as the budget has bytes, so that fragmentation
        // does not make allocations within the budget fail.
        let length_bytes = (budget_bytes.max(1 << 20) * 4).next_multiple_of(PAGE_BYTES);
        Arena { ordinal, length_bytes, mapping: None, free: BTreeMap::from([(0, length_bytes)]) }
    }

    fn mapping(&mut self) -> Result<&Mapping> {
        if self.mapping.is_none() {
            let file = files::memory_file(&format!("arena:{}", self.ordinal), self.length_bytes)?;
            let base = mapping::map(None, self.length_bytes, libc::PROT_NONE, Some((&file, 0)))?;
            self.mapping = Some(Mapping { file, base });
        }
        self.mapping.as_ref().ok_or(Code::OPERATING_SYSTEM)
    }

    /// Returns whether the address lies in the arena, allocated or not.
    pub(crate) fn covers(&self, address: u64) -> bool {
        self.mapping.as_ref().is_some_and(|mapping| (mapping.base..mapping.base + self.length_bytes).contains(&address))
    }

    /// Allocates whole pages and returns their address.
    pub(crate) fn take(&mut self, length_bytes: u64) -> Result<u64> {
        let with_guard = length_bytes + PAGE_BYTES;
        let base = self.mapping()?.base;
        let (offset, found) = self
            .free
            .iter()
            .find(|(_, free)| **free >= with_guard)
            .map(|(offset, free)| (*offset, *free))
            .ok_or(Code::OUT_OF_MEMORY)?;
        self.free.remove(&offset);
        if found > with_guard {
            self.free.insert(offset + with_guard, found - with_guard);
        }
        let address = base + offset;
        mapping::protect(address, length_bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        mapping::poison(address, length_bytes);
        Ok(address)
    }

    /// Frees a piece; later accesses to it fault.
    pub(crate) fn give_back(&mut self, address: u64, length_bytes: u64) {
        let Some(mapping) = &self.mapping else { return };
        let offset = address - mapping.base;
        let _ = mapping::protect(address, length_bytes, libc::PROT_NONE);
        files::discard(&mapping.file, offset, length_bytes);
        let mut start = offset;
        let mut length = length_bytes + PAGE_BYTES;
        if let Some((before, bytes)) = self.free.range(..offset).next_back().map(|(at, bytes)| (*at, *bytes))
            && before + bytes == start
        {
            self.free.remove(&before);
            start = before;
            length += bytes;
        }
        if let Some(bytes) = self.free.remove(&(start + length)) {
            length += bytes;
        }
        self.free.insert(start, length);
    }

    /// Returns the location by which another process can open the piece: the number of the
    /// descriptor in this process, and the offset in the file.
    pub(crate) fn locate(&self, address: u64) -> Option<(i32, u64)> {
        self.mapping.as_ref().map(|mapping| (mapping.file.as_raw_fd(), address - mapping.base))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allocates and frees in a pseudo-random order for a few thousand steps.
    #[test]
    fn arena_allocations_never_overlap_and_all_are_freed() {
        let mut arena = Arena::new(0, 8 << 20);
        let mut live: Vec<(u64, u64)> = Vec::new();
        let mut state = 12345_u64;
        let mut next = |limit: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % limit
        };
        for step in 0..3000_u64 {
            if live.is_empty() || (live.len() < 40 && next(2) == 0) {
                let bytes = (next(20) + 1) * PAGE_BYTES;
                let address = arena.take(bytes).expect("the requests are far below the budget");
                assert!(arena.covers(address) && arena.covers(address + bytes));
                for (other, length) in &live {
                    assert!(address + bytes < *other || other + length < address, "step {step}: two pieces are adjacent");
                }
                // SAFETY: the address is the first word of the piece that was just allocated.
                unsafe { (address as *mut u64).write(step) };
                live.push((address, bytes));
            } else {
                let (address, bytes) = live.swap_remove(next(live.len() as u64) as usize);
                arena.give_back(address, bytes);
            }
        }
        for (address, bytes) in live {
            arena.give_back(address, bytes);
        }
        assert_eq!(arena.free, BTreeMap::from([(0, arena.length_bytes)]));
    }

    #[test]
    fn allocation_larger_than_the_arena_fails() {
        let mut arena = Arena::new(0, 1 << 20);
        assert_eq!(arena.take(5 << 20), Err(Code::OUT_OF_MEMORY));
    }
}
