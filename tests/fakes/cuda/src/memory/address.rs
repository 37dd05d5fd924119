//! Maps every address to its allocation, its owner and the access rights. Invariants: ranges do not
//! overlap. Every byte of a live range can be accessed if [`AddressMap::place`] allows the access.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::allocation::Allocation;
use crate::abi::{Code, Result};
use crate::machine::driver::Driver;
use crate::sync::lock;

/// One live range of addresses.
pub(crate) struct Range {
    pub(crate) base: u64,
    pub(crate) size: u64,
    /// A number that is unique among all ranges of the process, including freed ones.
    pub(crate) id: u64,
    pub(crate) kind: Kind,
}

/// Kind of a range.
pub(crate) enum Kind {
    /// An allocation in a device's arena.
    Device(DeviceRange),
    /// Pinned memory of the host.
    Host(HostRange),
    /// Legacy IPC: an allocation in another process's arena.
    Imported { device: usize, context: usize, mapping: (u64, u64), opened: u32, key: [u8; 64], _file: OwnedFd },
    /// Memory mapped into a reservation.
    Mapped(MappedRange),
}

/// A plain allocation of a device.
pub(crate) struct DeviceRange {
    pub(crate) device: usize,
    pub(crate) context: usize,
    pub(crate) pool: Option<usize>,
    pub(crate) managed: bool,
    pub(crate) charged_bytes: u64,
    /// Whether a free is queued; new work must not use the range.
    pub(crate) freeing: bool,
    /// Whether the range belongs to a graph.
    pub(crate) of_graph: bool,
}

/// Pinned or registered memory of the host.
pub(crate) struct HostRange {
    pub(crate) context: usize,
    pub(crate) device: usize,
    pub(crate) flags: u32,
    pub(crate) registered: bool,
}

/// A part of a reservation that has memory mapped.
pub(crate) struct MappedRange {
    pub(crate) allocation: Arc<Allocation>,
    /// The handle by which the memory was mapped; the handle may have been released.
    pub(crate) handle: usize,
    pub(crate) offset: u64,
    /// Rights by device: 1 is read, 3 is read and write.
    pub(crate) access: BTreeMap<usize, u32>,
}

/// Kind of access that an operation needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    Read,
    Write,
}

/// An access to memory: the device that accesses, and the kind of the access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) device: usize,
    pub(crate) need: Need,
    /// Whether pageable host memory, which the driver does not know, is allowed.
    pub(crate) pageable: bool,
    /// Whether the access belongs to work that was enqueued before and runs now. A free that was
    /// enqueued later does not affect such work.
    pub(crate) queued: bool,
}

/// Kind of memory in which bytes are located.
pub(crate) enum Place {
    /// Ordinary memory, and the slot of the device that owns it.
    Plain { owner: Option<usize> },
    /// An address of a multicast object.
    Multicast { allocation: Arc<Allocation>, offset: u64 },
}

/// All ranges and reservations.
pub(crate) struct AddressMap {
    pub(crate) ranges: BTreeMap<u64, Range>,
    /// Sizes of reservations by base.
    pub(crate) reservations: BTreeMap<u64, u64>,
}

/// The map of this process. Running copies lock it for reading; functions that free memory lock it
/// for writing.
static MAP: RwLock<AddressMap> = RwLock::new(AddressMap { ranges: BTreeMap::new(), reservations: BTreeMap::new() });

/// Locks the map for reading, so that no memory is freed.
pub(crate) fn read() -> RwLockReadGuard<'static, AddressMap> {
    MAP.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the map exclusively, so that no copy runs while it changes.
pub(crate) fn change() -> RwLockWriteGuard<'static, AddressMap> {
    MAP.write().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a new number, which identifies a range.
pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl AddressMap {
    pub(crate) fn insert(&mut self, range: Range) {
        self.ranges.insert(range.base, range);
    }

    /// Returns the range that contains an address.
    pub(crate) fn find(&self, address: u64) -> Option<&Range> {
        self.ranges.range(..=address).next_back().map(|(_, range)| range).filter(|range| address - range.base < range.size)
    }

    /// Returns whether any live range overlaps these bytes.
    pub(crate) fn overlaps(&self, base: u64, size: u64) -> bool {
        self.ranges.range(..base.saturating_add(size)).next_back().is_some_and(|(_, range)| range.base + range.size > base)
    }

    /// Returns base and size of the reservation that contains all of these addresses.
    pub(crate) fn reservation(&self, base: u64, size: u64) -> Option<(u64, u64)> {
        let (start, length) = self.reservations.range(..=base).next_back().map(|(start, length)| (*start, *length))?;
        (base.checked_add(size)? <= start + length).then_some((start, length))
    }

    /// Returns the bases of the mapped ranges that fill these addresses without a gap; `None` if
    /// there is a gap.
    pub(crate) fn mapped_exactly(&self, base: u64, size: u64) -> Option<Vec<u64>> {
        let mut at = base;
        let mut found = Vec::new();
        while at < base + size {
            let range = self.ranges.get(&at)?;
            if !matches!(range.kind, Kind::Mapped(_)) {
                return None;
            }
            found.push(at);
            at += range.size;
        }
        (at == base + size).then_some(found)
    }

    /// Checks that an access is allowed, and returns the kind of memory at its address.
    pub(crate) fn place(&self, driver: &Driver, address: u64, bytes: u64, access: Access) -> Result<Place> {
        let end = address.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
        let Some(range) = self.find(address) else {
            let inside =
                self.reservation(address, 1).is_some() || driver.devices.iter().any(|device| lock(&device.arena).covers(address));
            return if address != 0 && access.pageable && !inside && !self.overlaps(address, bytes) {
                Ok(Place::Plain { owner: None })
            } else {
                Err(Code::INVALID_VALUE)
            };
        };
        let fits = end <= range.base + range.size;
        match &range.kind {
            Kind::Device(memory) if fits && (access.queued || !memory.freeing) => {
                Ok(Place::Plain { owner: Some(driver.slot(memory.device)) })
            }
            Kind::Imported { device, .. } if fits => Ok(Place::Plain { owner: Some(driver.slot(*device)) }),
            Kind::Host(_) if fits => Ok(Place::Plain { owner: None }),
            Kind::Mapped(_) => self.place_mapped(address, end, access),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Returns the place of an access to mapped memory, which may span adjacent mappings.
    fn place_mapped(&self, address: u64, end: u64, access: Access) -> Result<Place> {
        let mut at = address;
        let mut place = None;
        while at < end {
            let range = self.find(at).ok_or(Code::INVALID_VALUE)?;
            let Kind::Mapped(mapped) = &range.kind else { return Err(Code::INVALID_VALUE) };
            let wanted = if access.need == Need::Write { 2 } else { 1 };
            if mapped.access.get(&access.device).copied().unwrap_or(0) & wanted == 0 {
                return Err(Code::INVALID_VALUE);
            }
            if mapped.allocation.is_multicast() {
                // Only reducing instructions of kernels may load through a multicast address.
                if access.need == Need::Read || end > range.base + range.size {
                    return Err(Code::INVALID_VALUE);
                }
                let offset = mapped.offset + (at - range.base);
                return Ok(Place::Multicast { allocation: Arc::clone(&mapped.allocation), offset });
            }
            place.get_or_insert(Place::Plain { owner: Some(mapped.allocation.physical.slot) });
            at = range.base + range.size;
        }
        place.ok_or(Code::INVALID_VALUE)
    }
}
