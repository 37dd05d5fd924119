//! Symmetric memory: the heap and registered memory, and the live allocations.
//!
//! Module `resources` has the functions that allocate. Invariants: memory that is live on this PE
//! is live on every PE at the same offset. Bytes are accessed only while the `Memory` is locked.

use std::collections::BTreeMap;

use peerweave_fake_common::driver;

use super::region::Region;
use crate::call::undefined;

/// A symmetric address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) region: usize,
    pub(crate) offset: usize,
}

/// All symmetric memory.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) live: bool,
    /// The heap, and registered regions; `None` for a region that was unregistered.
    pub(crate) regions: Vec<Option<Region>>,
    /// Allocations of the heap: length in bytes by offset.
    pub(crate) allocations: BTreeMap<usize, usize>,
    /// Memory that this PE registered for itself: length in bytes by address.
    pub(crate) registered: BTreeMap<usize, usize>,
    /// Addresses that replace the heap's multicast memory; 0 for none.
    pub(crate) multicast: usize,
}

/// Alignment of allocations.
const ALIGNMENT: usize = 512;

impl Memory {
    /// Returns the offset of a free range of the heap. The offset is the same on every PE.
    pub(crate) fn find_room(&self, bytes: usize, alignment: usize) -> Option<usize> {
        let heap = self.regions.first()?.as_ref()?;
        let alignment = alignment.max(ALIGNMENT);
        // The heap of a PE is aligned only to the driver's granularity.
        if alignment > driver::GRANULARITY {
            return None;
        }
        let mut at = 0_usize;
        for (offset, taken) in &self.allocations {
            if at.checked_add(bytes)? <= *offset {
                return Some(at);
            }
            at = (offset + taken).next_multiple_of(alignment);
        }
        (at.checked_add(bytes)? <= heap.bytes).then_some(at)
    }

    fn region_of(&self, address: usize) -> Option<Place> {
        self.regions.iter().enumerate().find_map(|(region, known)| {
            let known = known.as_ref()?;
            let offset = address.checked_sub(known.base)?;
            (offset < known.bytes).then_some(Place { region, offset })
        })
    }

    /// Returns the symmetric address of live bytes of this PE.
    pub(crate) fn find(&self, address: usize, bytes: usize) -> Option<Place> {
        let place = self.region_of(address)?;
        let (start, length) = match place.region {
            0 => self.allocations.range(..=place.offset).next_back().map(|(start, length)| (*start, *length))?,
            region => (0, self.regions[region].as_ref()?.bytes),
        };
        (place.offset.checked_add(bytes)? <= start + length).then_some(place)
    }

    /// Returns whether all bytes are registered on this PE.
    pub(crate) fn is_registered(&self, address: usize, bytes: usize) -> bool {
        let before = self.registered.range(..=address).next_back();
        before.is_some_and(|(start, length)| address + bytes <= start + length)
    }

    /// Returns the address of an argument that must be symmetric memory.
    pub(crate) fn symmetric(&self, function: &str, what: &str, address: usize, bytes: usize) -> Place {
        self.alive(function);
        self.find(address, bytes).unwrap_or_else(|| {
            undefined(&format!("{function}: {bytes} bytes of {what} at {address:#x} are not allocated symmetric memory"))
        })
    }

    /// Checks an argument that may be any memory except symmetric memory that is not allocated.
    pub(crate) fn local(&self, function: &str, what: &str, address: usize, bytes: usize) {
        self.alive(function);
        if self.region_of(address).is_some() && bytes > 0 && self.find(address, bytes).is_none() {
            undefined(&format!("{function}: {bytes} bytes of {what} at {address:#x} are not allocated in the symmetric heap"));
        }
    }

    fn alive(&self, function: &str) {
        if !self.live {
            undefined(&format!("{function} reached its stream after nvshmemx_hostlib_finalize"));
        }
    }

    /// Returns the address by which this library accesses a PE's bytes.
    pub(crate) fn of(&self, pe: i32, place: Place) -> *mut u8 {
        let region = self.regions[place.region].as_ref().expect("the region of a found address is registered");
        (region.peers[pe as usize].own + place.offset) as *mut u8
    }

    /// Returns the address by which the program accesses a PE's bytes; `None` if the program has no
    /// pointer to that PE.
    pub(crate) fn given(&self, pe: i32, place: Place) -> Option<usize> {
        let region = self.regions[place.region].as_ref()?;
        region.peers[pe as usize].given.map(|given| given + place.offset)
    }
}
