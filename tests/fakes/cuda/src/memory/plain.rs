//! Plain memory of devices: allocates it in an arena, and frees it. Invariant: the bytes charged to
//! a device's budget are the sum of the sizes of its live ranges.

use super::address::{AddressMap, DeviceRange, Kind, Range, change, next_id};
use crate::abi::{Code, Result};
use crate::machine::driver::{Driver, driver};
use crate::machine::pool::POOLS;
use crate::os::mapping::PAGE_BYTES;
use crate::sync::lock;

/// Properties of a new allocation.
pub(crate) struct Wanted {
    pub(crate) bytes: usize,
    pub(crate) device: usize,
    pub(crate) context: usize,
    pub(crate) pool: Option<usize>,
    pub(crate) managed: bool,
    pub(crate) of_graph: bool,
}

/// Allocates memory; returns its address, and the number of its range.
pub(crate) fn allocate(wanted: &Wanted) -> Result<(u64, u64)> {
    if wanted.bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let driver = driver()?;
    let device = driver.devices.get(wanted.device).ok_or(Code::INVALID_DEVICE)?;
    let charged_bytes = (wanted.bytes as u64).checked_next_multiple_of(PAGE_BYTES).ok_or(Code::OUT_OF_MEMORY)?;
    device.charge(charged_bytes)?;
    let base = lock(&device.arena).take(charged_bytes).inspect_err(|_| device.refund(charged_bytes))?;
    if let Some(pool) = wanted.pool.and_then(|pool| POOLS.get(pool)) {
        pool.use_bytes(charged_bytes);
    }
    let id = next_id();
    let kind = Kind::Device(DeviceRange {
        device: wanted.device,
        context: wanted.context,
        pool: wanted.pool,
        managed: wanted.managed,
        charged_bytes,
        freeing: false,
        of_graph: wanted.of_graph,
    });
    change().insert(Range { base, size: wanted.bytes as u64, id, kind });
    Ok((base, id))
}

/// Removes a range from the map and returns its bytes to the budget.
pub(crate) fn remove(driver: &Driver, map: &mut AddressMap, base: u64) {
    let Some(range) = map.ranges.remove(&base) else { return };
    let Kind::Device(memory) = range.kind else { return };
    let device = &driver.devices[memory.device];
    lock(&device.arena).give_back(base, memory.charged_bytes);
    device.refund(memory.charged_bytes);
    if let Some(pool) = memory.pool.and_then(|pool| POOLS.get(pool)) {
        pool.return_bytes(memory.charged_bytes);
    }
}

/// Frees the memory of a queued free, when its stream runs the free.
pub(crate) fn finish_free(base: u64, id: u64) -> Result {
    let driver = driver()?;
    let mut map = change();
    // If the context was destroyed meanwhile, its memory is already free.
    if map.ranges.get(&base).is_some_and(|range| range.id == id) {
        remove(driver, &mut map, base);
    }
    Ok(())
}

/// Frees all plain memory of a destroyed context, including that of pools.
pub(crate) fn free_all_of_context(context: usize) {
    let Ok(driver) = driver() else { return };
    let mut map = change();
    let bases: Vec<u64> = map
        .ranges
        .values()
        .filter(|range| matches!(&range.kind, Kind::Device(memory) if memory.context == context && !memory.of_graph))
        .map(|range| range.base)
        .collect();
    for base in bases {
        remove(driver, &mut map, base);
    }
}

/// Memory that belongs to a graph, and to the clones and instances of that graph.
pub(crate) struct GraphMemory {
    pub(crate) base: u64,
    pub(crate) id: u64,
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        let _ = finish_free(self.base, self.id);
    }
}
