//! Plain memory of devices: allocates and frees, in the order of the host or of a stream. Virtual
//! memory is in [`crate::vmm`]. Invariant: the bytes charged to a device's budget are the sum over
//! its live ranges.

use core::ffi::c_uint;
use std::sync::{Arc, PoisonError, RwLockWriteGuard};

use crate::abi::{Code, CuPool, CuPtr, CuStream, Out, Result};
use crate::address::{AddressMap, DeviceRange, Kind, Range, next_id};
use crate::arena::PAGE_BYTES;
use crate::calls::exports;
use crate::capture;
use crate::context;
use crate::device::has_pools;
use crate::driver::{Driver, driver};
use crate::stream::{self, outside_capture};
use crate::sync::lock;
use crate::work::Work;

/// Locks the map exclusively, so that no copy runs while it changes.
pub(crate) fn change(driver: &Driver) -> RwLockWriteGuard<'_, AddressMap> {
    driver.map.write().unwrap_or_else(PoisonError::into_inner)
}

/// Properties of a new allocation.
struct Wanted {
    bytes: usize,
    device: usize,
    context: usize,
    pool: Option<usize>,
    managed: bool,
    of_graph: bool,
}

fn allocate(wanted: &Wanted) -> Result<(u64, u64)> {
    if wanted.bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let driver = driver()?;
    let device = driver.devices.get(wanted.device).ok_or(Code::INVALID_DEVICE)?;
    let charged_bytes = (wanted.bytes as u64).checked_next_multiple_of(PAGE_BYTES).ok_or(Code::OUT_OF_MEMORY)?;
    device.charge(charged_bytes)?;
    let base = lock(&device.arena).take(charged_bytes).inspect_err(|_| device.refund(charged_bytes))?;
    if let Some(pool) = wanted.pool.and_then(|pool| driver.pools.get(pool)) {
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
    change(driver).insert(Range { base, size: wanted.bytes as u64, id, kind });
    Ok((base, id))
}

/// Removes a range from the map and returns its bytes to the budget.
fn remove(driver: &Driver, map: &mut AddressMap, base: u64) {
    let Some(range) = map.ranges.remove(&base) else { return };
    let Kind::Device(memory) = range.kind else { return };
    let device = &driver.devices[memory.device];
    lock(&device.arena).give_back(base, memory.charged_bytes);
    device.refund(memory.charged_bytes);
    if let Some(pool) = memory.pool.and_then(|pool| driver.pools.get(pool)) {
        pool.return_bytes(memory.charged_bytes);
    }
}

/// Runs the queued part of a free.
pub(crate) fn finish_free(base: u64, id: u64) -> Result {
    let driver = driver()?;
    let mut map = change(driver);
    // The end of a context has already freed its memory.
    if map.ranges.get(&base).is_some_and(|range| range.id == id) {
        remove(driver, &mut map, base);
    }
    Ok(())
}

/// Frees all plain memory of a destroyed context, including that of pools.
pub(crate) fn free_all_of_context(context: usize) {
    let Ok(driver) = driver() else { return };
    let mut map = change(driver);
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

/// Memory that belongs to a graph and the graphs made of it.
pub(crate) struct GraphMemory {
    base: u64,
    id: u64,
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        let _ = finish_free(self.base, self.id);
    }
}

fn allocate_in_order(out: &Out<CuPtr>, bytes: usize, pool: Option<CuPool>, stream: CuStream) -> Result {
    out.required()?;
    let driver = driver()?;
    if !has_pools() {
        return Err(Code::NOT_SUPPORTED);
    }
    let stream = stream::resolve(stream)?;
    stream.context.check()?;
    let device = stream.context.device;
    let pool = pool.map_or_else(|| *lock(&driver.devices[device].current_pool), |pool| pool.0);
    let device = driver.pools.get(pool).ok_or(Code::INVALID_VALUE)?.device;
    let captured = capture::position(&stream)?.is_some();
    let wanted = Wanted { bytes, device, context: stream.context.handle, pool: Some(pool), managed: false, of_graph: captured };
    let (base, id) = allocate(&wanted)?;
    if captured {
        stream.submit(Work::GraphAlloc(Arc::new(GraphMemory { base, id })))?;
    }
    out.set(base)
}

exports! {
    3020 fn cuMemAlloc_v2(pointer: Out<CuPtr>, bytes: usize) {
        pointer.required()?;
        let context = outside_capture()?;
        let wanted = Wanted {
            bytes, device: context.device, context: context.handle, pool: None, managed: false, of_graph: false,
        };
        pointer.set(allocate(&wanted)?.0)
    }

    3020 fn cuMemAllocPitch_v2(pointer: Out<CuPtr>, pitch: Out<usize>, width: usize, height: usize, element_bytes: c_uint) {
        pointer.required()?;
        if !matches!(element_bytes, 4 | 8 | 16) {
            return Err(Code::INVALID_VALUE);
        }
        let context = outside_capture()?;
        let row = width.checked_next_multiple_of(512).ok_or(Code::INVALID_VALUE)?;
        let bytes = row.checked_mul(height).ok_or(Code::OUT_OF_MEMORY)?;
        let wanted = Wanted {
            bytes, device: context.device, context: context.handle, pool: None, managed: false, of_graph: false,
        };
        pitch.set(row)?;
        pointer.set(allocate(&wanted)?.0)
    }

    6000 fn cuMemAllocManaged(pointer: Out<CuPtr>, bytes: usize, flags: c_uint) {
        pointer.required()?;
        if !matches!(flags, 1 | 2) {
            return Err(Code::INVALID_VALUE);
        }
        let context = outside_capture()?;
        let wanted = Wanted {
            bytes, device: context.device, context: context.handle, pool: None, managed: true, of_graph: false,
        };
        pointer.set(allocate(&wanted)?.0)
    }

    3020 fn cuMemFree_v2(pointer: CuPtr) {
        if pointer == 0 {
            return Ok(());
        }
        let current = outside_capture()?;
        let driver = driver()?;
        let owner = {
            let map = change(driver);
            let range = map.ranges.get(&pointer).ok_or(Code::INVALID_VALUE)?;
            match &range.kind {
                Kind::Device(memory) if !memory.freeing && !memory.of_graph => memory.context,
                _ => return Err(Code::INVALID_VALUE),
            }
        };
        // Like the driver, waits for the device before memory is freed.
        if let Some(owner) = driver.contexts.get(owner) {
            owner.synchronize()?;
        }
        if owner != current.handle {
            current.synchronize()?;
        }
        remove(driver, &mut change(driver), pointer);
        Ok(())
    }

    11020 fn cuMemAllocAsync(pointer: Out<CuPtr>, bytes: usize, stream: CuStream) {
        allocate_in_order(&pointer, bytes, None, stream)
    }

    11020 fn cuMemAllocFromPoolAsync(pointer: Out<CuPtr>, bytes: usize, pool: CuPool, stream: CuStream) {
        allocate_in_order(&pointer, bytes, Some(pool), stream)
    }

    11020 fn cuMemFreeAsync(pointer: CuPtr, stream: CuStream) {
        let driver = driver()?;
        let stream = stream::resolve(stream)?;
        stream.context.check()?;
        if pointer == 0 {
            return Err(Code::INVALID_VALUE);
        }
        if capture::position(&stream)?.is_some() {
            if !capture::has_graph_memory(&stream, |memory| memory.base == pointer) {
                return Err(Code::INVALID_VALUE);
            }
            return stream.submit(Work::GraphFree);
        }
        let id = {
            let mut map = change(driver);
            let range = map.ranges.get_mut(&pointer).ok_or(Code::INVALID_VALUE)?;
            match &mut range.kind {
                Kind::Device(memory) if !memory.freeing && !memory.of_graph => memory.freeing = true,
                _ => return Err(Code::INVALID_VALUE),
            }
            range.id
        };
        stream.push(stream::Run::Work(Work::Free { address: pointer, id }));
        Ok(())
    }

    3020 fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let context = context::current()?;
        let device = &driver()?.devices[context.device];
        free.set(device.free_bytes() as usize)?;
        total.set(device.total_bytes as usize)
    }

    3020 fn cuMemGetAddressRange_v2(base: Out<CuPtr>, size: Out<usize>, pointer: CuPtr) {
        context::current()?;
        let map = change(driver()?);
        let range = map.find(pointer).ok_or(Code::NOT_FOUND)?;
        base.set_if_wanted(range.base);
        size.set_if_wanted(range.size as usize);
        Ok(())
    }
}
