//! Virtual memory: handles, reservations, mappings, access rights. Invariants: an address of a
//! reservation is accessible exactly if memory is mapped there and some device has access rights to
//! that memory. A mapping keeps its memory allocated after the handle is released.

use core::ffi::{c_int, c_ulonglong};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::abi::{AccessDesc, AllocationProp, Code, CuMemHandle, CuPtr, In, Location, Out, Result};
use crate::calls::exports;
use crate::machine::driver::Driver;
use crate::memory::address::{Kind, MappedRange, Range, change, next_id};
use crate::memory::allocation::{ALLOCATIONS, Allocation, GRANULARITY, aligned, available, check_handle_types, find, publish};
use crate::os::mapping::{self, PAGE_BYTES};

fn check_prop(driver: &Driver, prop: &AllocationProp) -> Result<usize> {
    if prop.kind != 1 || prop.location.kind != Location::DEVICE {
        return Err(Code::INVALID_VALUE);
    }
    check_handle_types(prop.handle_types)?;
    Ok(driver.device(prop.location.id)?.ordinal)
}

/// Returns the host's access protection: the union of the devices' access rights.
fn protection(access: &BTreeMap<usize, u32>) -> c_int {
    match access.values().copied().max().unwrap_or(0) {
        3 => libc::PROT_READ | libc::PROT_WRITE,
        1 => libc::PROT_READ,
        _ => libc::PROT_NONE,
    }
}

fn set_access(driver: &Driver, at: CuPtr, size: u64, wanted: &[AccessDesc]) -> Result {
    let mut map = change();
    let ranges = map.mapped_exactly(at, size).ok_or(Code::INVALID_VALUE)?;
    for one in wanted {
        if one.location.kind != Location::DEVICE || !matches!(one.flags, 0 | 1 | 3) {
            return Err(Code::INVALID_VALUE);
        }
        let slot = driver.device(one.location.id)?.slot;
        for base in &ranges {
            let Some(Range { kind: Kind::Mapped(mapped), .. }) = map.ranges.get(base) else { continue };
            let allowed = match &mapped.allocation.team {
                Some(team) => team.has_slot(slot)?,
                None => mapped.allocation.physical.slot == slot || driver.can_access_peer(slot, mapped.allocation.physical.slot),
            };
            if !allowed {
                return Err(Code::INVALID_DEVICE);
            }
        }
    }
    for base in ranges {
        let Some(range) = map.ranges.get_mut(&base) else { continue };
        let size = range.size;
        let Kind::Mapped(mapped) = &mut range.kind else { continue };
        for one in wanted {
            mapped.access.insert(one.location.id as usize, one.flags as u32);
        }
        // A multicast address is never memory of the host: a plain store to it faults.
        if !mapped.allocation.is_multicast() {
            mapping::protect(base, size, protection(&mapped.access))?;
        }
    }
    Ok(())
}

exports! {
    10020 fn cuMemGetAllocationGranularity(granularity: Out<usize>, prop: In<AllocationProp>, option: c_int) {
        granularity.required()?;
        check_prop(available()?, &prop.get()?)?;
        if !matches!(option, 0 | 1) {
            return Err(Code::INVALID_VALUE);
        }
        granularity.set(GRANULARITY as usize)
    }

    10020 fn cuMemCreate(handle: Out<CuMemHandle>, size: usize, prop: In<AllocationProp>, flags: c_ulonglong) {
        handle.required()?;
        let driver = available()?;
        let prop = prop.get()?;
        let device = check_prop(driver, &prop)?;
        aligned(&[size as u64])?;
        if size == 0 || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        handle.set(publish(Allocation::create(driver, size as u64, device, prop.handle_types)?))
    }

    10020 fn cuMemRelease(handle: CuMemHandle) {
        if find(handle)?.release() {
            ALLOCATIONS.remove(handle as usize);
        }
        Ok(())
    }

    10020 fn cuMemAddressReserve(address: Out<CuPtr>, size: usize, alignment: usize, wish: CuPtr, flags: c_ulonglong) {
        address.required()?;
        available()?;
        if size == 0 || flags != 0 || !size.is_multiple_of(PAGE_BYTES as usize) || (alignment != 0 && !alignment.is_power_of_two()) {
            return Err(Code::INVALID_VALUE);
        }
        let base = mapping::reserve(size as u64, (alignment as u64).max(GRANULARITY), wish)?;
        change().reservations.insert(base, size as u64);
        address.set(base)
    }

    10020 fn cuMemAddressFree(address: CuPtr, size: usize) {
        available()?;
        let mut map = change();
        if map.reservations.get(&address) != Some(&(size as u64)) || map.overlaps(address, size as u64) {
            return Err(Code::INVALID_VALUE);
        }
        map.reservations.remove(&address);
        mapping::unmap(address, size as u64);
        Ok(())
    }

    10020 fn cuMemMap(address: CuPtr, size: usize, offset: usize, handle: CuMemHandle, flags: c_ulonglong) {
        available()?;
        let allocation = find(handle)?;
        let size = size as u64;
        aligned(&[address, size])?;
        // The driver's manual requires an offset of zero.
        if size == 0 || flags != 0 || offset != 0 || size > allocation.physical.size {
            return Err(Code::INVALID_VALUE);
        }
        if let Some(team) = &allocation.team {
            team.wait_for_devices()?;
        }
        let mut map = change();
        map.reservation(address, size).ok_or(Code::INVALID_VALUE)?;
        if map.overlaps(address, size) {
            return Err(Code::INVALID_VALUE);
        }
        if !allocation.is_multicast() {
            mapping::map(Some(address), size, libc::PROT_NONE, Some((&allocation.physical.file, 0)))?;
        }
        let kind = Kind::Mapped(MappedRange { allocation, handle: handle as usize, offset: 0, access: BTreeMap::new() });
        map.insert(Range { base: address, size, id: next_id(), kind });
        Ok(())
    }

    10020 fn cuMemUnmap(address: CuPtr, size: usize) {
        available()?;
        let mut map = change();
        let ranges = map.mapped_exactly(address, size as u64).filter(|ranges| !ranges.is_empty()).ok_or(Code::INVALID_VALUE)?;
        let removed: Vec<Range> = ranges.iter().filter_map(|base| map.ranges.remove(base)).collect();
        mapping::map(Some(address), size as u64, libc::PROT_NONE, None)?;
        drop(map);
        // Memory without other users is released here, after the map is unlocked.
        drop(removed);
        Ok(())
    }

    10020 fn cuMemSetAccess(address: CuPtr, size: usize, wanted: In<AccessDesc>, count: usize) {
        let wanted = wanted.array(count)?;
        if wanted.is_empty() || size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        set_access(available()?, address, size as u64, &wanted)
    }

    10020 fn cuMemGetAccess(flags: Out<c_ulonglong>, location: In<Location>, address: CuPtr) {
        let driver = available()?;
        let location = location.get()?;
        if location.kind != Location::DEVICE {
            return Err(Code::INVALID_VALUE);
        }
        let device = driver.device(location.id)?.ordinal;
        let map = change();
        match map.find(address).map(|range| &range.kind) {
            Some(Kind::Mapped(mapped)) => flags.set(u64::from(mapped.access.get(&device).copied().unwrap_or(0))),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    11000 fn cuMemRetainAllocationHandle(handle: Out<CuMemHandle>, address: CuPtr) {
        handle.required()?;
        available()?;
        let map = change();
        let Some(Kind::Mapped(mapped)) = map.find(address).map(|range| &range.kind) else {
            return Err(Code::INVALID_VALUE);
        };
        // According to the manual, the result is the handle by which the memory was mapped, even if
        // that handle was released meanwhile.
        mapped.allocation.retain();
        ALLOCATIONS.insert(mapped.handle, Arc::clone(&mapped.allocation));
        handle.set(mapped.handle as CuMemHandle)
    }

    10020 fn cuMemGetAllocationPropertiesFromHandle(prop: Out<AllocationProp>, handle: CuMemHandle) {
        let allocation = find(handle)?;
        let physical = &allocation.physical;
        prop.set(AllocationProp {
            kind: 1,
            handle_types: physical.handle_types,
            location: Location { kind: Location::DEVICE, id: physical.device.map_or(-1, |device| device as c_int) },
            win32: 0,
            compression: 0,
            rdma: 0,
            usage: 0,
            reserved: [0; 4],
        })
    }
}
