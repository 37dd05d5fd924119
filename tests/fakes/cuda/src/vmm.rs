//! Virtual memory: handles, reservations, mappings, access rights, and sharing between processes.
//! Multicast objects are in [`crate::multicast`]. Invariant: an address of a reservation is
//! accessible exactly if memory is mapped there and some device has a right to it; a mapping keeps
//! its memory allocated after the handle is released.

use core::ffi::{c_int, c_ulonglong, c_void};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::{AccessDesc, AllocationProp, Code, CuMemHandle, CuPtr, Handle64, In, Location, Out, Result};
use crate::address::{Kind, MappedRange, Range, next_id};
use crate::arena::PAGE_BYTES;
use crate::calls::exports;
use crate::calls::settings::{setting, variable};
use crate::device::{fabric_supported, has_vmm};
use crate::driver::{Driver, driver};
use crate::memory::change;
use crate::multicast::Team;
use crate::physical::{FABRIC, GRANULARITY, POSIX_FD, Physical};
use crate::share;

/// Returns a number for memory that is unique among all processes.
pub(crate) fn new_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    (u64::from(std::process::id()) << 32) | NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Checks that sizes and offsets are multiples of the granularity.
pub(crate) fn aligned(values: &[u64]) -> Result {
    if values.iter().all(|value| value.is_multiple_of(GRANULARITY)) { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// Returns the driver, or an error if it has no virtual memory management.
pub(crate) fn available() -> Result<&'static Driver> {
    let driver = driver()?;
    if has_vmm() { Ok(driver) } else { Err(Code::NOT_SUPPORTED) }
}

/// Refuses handle types that do not exist or that this driver lacks.
pub(crate) fn check_handle_types(types: c_int) -> Result {
    if types & !(POSIX_FD | FABRIC) != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if types & FABRIC != 0 && !fabric_supported() {
        return Err(Code::NOT_SUPPORTED);
    }
    Ok(())
}

/// Returns memory by its handle.
pub(crate) fn find(handle: CuMemHandle) -> Result<Arc<Physical>> {
    available()?.physical.get(handle as usize).ok_or(Code::INVALID_VALUE)
}

/// Creates a handle for memory that has none.
pub(crate) fn publish(physical: Physical) -> Result<CuMemHandle> {
    Ok(driver()?.physical.add(physical) as CuMemHandle)
}

fn check_prop(driver: &Driver, prop: &AllocationProp) -> Result<usize> {
    if prop.kind != 1 || prop.location.kind != Location::DEVICE {
        return Err(Code::INVALID_VALUE);
    }
    check_handle_types(prop.handle_types)?;
    Ok(driver.device(prop.location.id)?.ordinal)
}

fn create(driver: &Driver, size: u64, device: usize, types: c_int) -> Result<Physical> {
    driver.devices[device].charge(size)?;
    let (number, slot) = (new_number(), driver.slot(device));
    let made = share::memory_file(&format!("memory:{slot}:{types}:{number}"), size).and_then(|file| {
        let address = share::map(None, size, libc::PROT_READ | libc::PROT_WRITE, Some((&file, 0)))?;
        share::poison(address, size);
        share::unmap(address, size);
        Ok(file)
    });
    match made {
        Ok(file) => Ok(Physical::new(file, size, slot, types, number, true)),
        Err(code) => {
            driver.devices[device].refund(size);
            Err(code)
        }
    }
}

fn reserve(size: u64, alignment: u64, wish: CuPtr) -> Result<u64> {
    let alignment = alignment.max(GRANULARITY);
    let whole = size.checked_add(alignment).ok_or(Code::OUT_OF_MEMORY)?;
    if wish != 0 && wish.is_multiple_of(alignment) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: with NOREPLACE the kernel gives these addresses only if nobody has them.
        let got = unsafe { libc::mmap(wish as *mut c_void, size as usize, libc::PROT_NONE, flags, -1, 0) };
        if got as u64 == wish {
            return Ok(wish);
        }
        if got != libc::MAP_FAILED {
            share::unmap(got as u64, size);
        }
    }
    let start = share::map(None, whole, libc::PROT_NONE, None)?;
    let base = start.next_multiple_of(alignment);
    if base > start {
        share::unmap(start, base - start);
    }
    if start + whole > base + size {
        share::unmap(base + size, start + whole - (base + size));
    }
    Ok(base)
}

/// Returns the host's access: the union of the devices' rights.
fn protection(access: &BTreeMap<usize, u32>) -> c_int {
    match access.values().copied().max().unwrap_or(0) {
        3 => libc::PROT_READ | libc::PROT_WRITE,
        1 => libc::PROT_READ,
        _ => libc::PROT_NONE,
    }
}

fn set_access(driver: &Driver, at: CuPtr, size: u64, wanted: &[AccessDesc]) -> Result {
    let mut map = change(driver);
    let ranges = map.mapped_exactly(at, size).ok_or(Code::INVALID_VALUE)?;
    for one in wanted {
        if one.location.kind != Location::DEVICE || !matches!(one.flags, 0 | 1 | 3) {
            return Err(Code::INVALID_VALUE);
        }
        let slot = driver.device(one.location.id)?.slot;
        for base in &ranges {
            let Some(Range { kind: Kind::Mapped(mapped), .. }) = map.ranges.get(base) else { continue };
            let allowed = match &mapped.physical.team {
                Some(team) => team.has_slot(slot)?,
                None => mapped.physical.slot == slot || driver.can_access_peer(slot, mapped.physical.slot),
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
        if !mapped.physical.is_multicast() {
            share::protect(base, size, protection(&mapped.access))?;
        }
    }
    Ok(())
}

fn export_fabric(physical: &Physical) -> Result<Handle64> {
    let directory = setting(variable::FABRIC_DIR).ok_or(Code::NOT_SUPPORTED)?;
    let pid = std::process::id();
    let start = share::process_start(pid).ok_or(Code::OPERATING_SYSTEM)?;
    let text = format!("{pid} {start} {}", physical.file.as_raw_fd());
    std::fs::write(format!("{directory}/{:016x}", physical.number), text).map_err(|_| Code::OPERATING_SYSTEM)?;
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(b"pwfabric");
    bytes[8..16].copy_from_slice(&physical.number.to_le_bytes());
    Ok(Handle64 { bytes })
}

fn open_fabric(handle: &Handle64) -> Result<OwnedFd> {
    let directory = setting(variable::FABRIC_DIR).ok_or(Code::NOT_SUPPORTED)?;
    let number = handle.bytes[8..16].try_into().map(u64::from_le_bytes).map_err(|_| Code::INVALID_VALUE)?;
    if &handle.bytes[..8] != b"pwfabric" {
        return Err(Code::INVALID_VALUE);
    }
    let text = std::fs::read_to_string(format!("{directory}/{number:016x}")).map_err(|_| Code::INVALID_VALUE)?;
    let mut words = text.split(' ').map(str::parse::<u64>);
    let mut word = || words.next().and_then(core::result::Result::ok).ok_or(Code::INVALID_VALUE);
    let (pid, start, fd) = (word()? as u32, word()?, word()? as i32);
    if share::process_start(pid) != Some(start) {
        return Err(Code::INVALID_VALUE);
    }
    let file = share::open_of_process(pid, fd).ok_or(Code::INVALID_VALUE)?;
    // The number of a descriptor may have been given to another file since.
    let is_it = share::label(&file).is_some_and(|label| label.rsplit(':').next() == Some(number.to_string().as_str()));
    if is_it { Ok(file) } else { Err(Code::INVALID_VALUE) }
}

/// Reads the header of another process's file and returns its memory.
fn adopt(file: OwnedFd) -> Result<Physical> {
    let label = share::label(&file).ok_or(Code::INVALID_VALUE)?;
    let mut words = label.split(':');
    let kind = words.next().unwrap_or_default();
    let mut word = || words.next().and_then(|word| word.parse::<u64>().ok()).ok_or(Code::INVALID_VALUE);
    match kind {
        "memory" => {
            let (slot, types, number) = (word()? as usize, word()? as c_int, word()?);
            let size = share::length(&file)?;
            Ok(Physical::new(file, size, slot, types, number, false))
        }
        "multicast" => {
            let (size, types, number) = (word()?, word()? as c_int, word()?);
            if !crate::device::has_multicast() {
                return Err(Code::NOT_SUPPORTED);
            }
            let team = Team::open(&file, number)?;
            Ok(Physical::new(file, size, usize::MAX, types, number, false).with_team(team))
        }
        _ => Err(Code::INVALID_VALUE),
    }
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
        handle.set(publish(create(driver, size as u64, device, prop.handle_types)?)?)
    }

    10020 fn cuMemRelease(handle: CuMemHandle) {
        if find(handle)?.release() {
            driver()?.physical.remove(handle as usize);
        }
        Ok(())
    }

    10020 fn cuMemAddressReserve(address: Out<CuPtr>, size: usize, alignment: usize, wish: CuPtr, flags: c_ulonglong) {
        address.required()?;
        let driver = available()?;
        if size == 0 || flags != 0 || !size.is_multiple_of(PAGE_BYTES as usize) || (alignment != 0 && !alignment.is_power_of_two()) {
            return Err(Code::INVALID_VALUE);
        }
        let base = reserve(size as u64, alignment as u64, wish)?;
        change(driver).reservations.insert(base, size as u64);
        address.set(base)
    }

    10020 fn cuMemAddressFree(address: CuPtr, size: usize) {
        let mut map = change(available()?);
        if map.reservations.get(&address) != Some(&(size as u64)) || map.overlaps(address, size as u64) {
            return Err(Code::INVALID_VALUE);
        }
        map.reservations.remove(&address);
        share::unmap(address, size as u64);
        Ok(())
    }

    10020 fn cuMemMap(address: CuPtr, size: usize, offset: usize, handle: CuMemHandle, flags: c_ulonglong) {
        let driver = available()?;
        let physical = find(handle)?;
        let size = size as u64;
        aligned(&[address, size])?;
        // The driver's manual requires an offset of zero.
        if size == 0 || flags != 0 || offset != 0 || size > physical.size {
            return Err(Code::INVALID_VALUE);
        }
        if let Some(team) = &physical.team {
            team.wait_for_devices()?;
        }
        let mut map = change(driver);
        map.reservation(address, size).ok_or(Code::INVALID_VALUE)?;
        if map.overlaps(address, size) {
            return Err(Code::INVALID_VALUE);
        }
        if !physical.is_multicast() {
            share::map(Some(address), size, libc::PROT_NONE, Some((&physical.file, 0)))?;
        }
        let kind = Kind::Mapped(MappedRange { physical, handle: handle as usize, offset: 0, access: BTreeMap::new() });
        map.insert(Range { base: address, size, id: next_id(), kind });
        Ok(())
    }

    10020 fn cuMemUnmap(address: CuPtr, size: usize) {
        let mut map = change(available()?);
        let ranges = map.mapped_exactly(address, size as u64).filter(|ranges| !ranges.is_empty()).ok_or(Code::INVALID_VALUE)?;
        let removed: Vec<Range> = ranges.iter().filter_map(|base| map.ranges.remove(base)).collect();
        share::map(Some(address), size as u64, libc::PROT_NONE, None)?;
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
        let map = change(driver);
        match map.find(address).map(|range| &range.kind) {
            Some(Kind::Mapped(mapped)) => flags.set(u64::from(mapped.access.get(&device).copied().unwrap_or(0))),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    10020 fn cuMemExportToShareableHandle(out: Out<c_void>, handle: CuMemHandle, kind: c_int, flags: c_ulonglong) {
        out.required()?;
        let physical = find(handle)?;
        if flags != 0 || !matches!(kind, POSIX_FD | FABRIC) || physical.handle_types & kind == 0 {
            return Err(Code::INVALID_VALUE);
        }
        if kind == FABRIC {
            return out.cast::<Handle64>().set(export_fabric(&physical)?);
        }
        let copy = share::duplicate(&physical.file)?;
        out.cast::<c_int>().set(copy.into_raw_fd())
    }

    10020 fn cuMemImportFromShareableHandle(handle: Out<CuMemHandle>, given: In<Handle64>, kind: c_int) {
        handle.required()?;
        available()?;
        let file = match kind {
            POSIX_FD => {
                // The argument is the number of a descriptor, which the caller keeps. SAFETY: a
                // number; duplicating one that is no descriptor fails.
                let copy = unsafe { libc::fcntl(given.address() as c_int, libc::F_DUPFD_CLOEXEC, 0) };
                if copy < 0 {
                    return Err(Code::INVALID_VALUE);
                }
                // SAFETY: the kernel has just given this descriptor to nobody else.
                unsafe { OwnedFd::from_raw_fd(copy) }
            }
            FABRIC if fabric_supported() => open_fabric(&given.get()?)?,
            FABRIC => return Err(Code::NOT_SUPPORTED),
            _ => return Err(Code::INVALID_VALUE),
        };
        handle.set(publish(adopt(file)?)?)
    }

    11000 fn cuMemRetainAllocationHandle(handle: Out<CuMemHandle>, address: CuPtr) {
        handle.required()?;
        let driver = available()?;
        let map = change(driver);
        let Some(Kind::Mapped(mapped)) = map.find(address).map(|range| &range.kind) else {
            return Err(Code::INVALID_VALUE);
        };
        // According to the manual, the result is the handle by which the memory was mapped, even if
        // it was released meanwhile.
        mapped.physical.retain();
        driver.physical.insert(mapped.handle, Arc::clone(&mapped.physical));
        handle.set(mapped.handle as CuMemHandle)
    }

    10020 fn cuMemGetAllocationPropertiesFromHandle(prop: Out<AllocationProp>, handle: CuMemHandle) {
        let physical = find(handle)?;
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

    11070 fn cuMemGetHandleForAddressRange(
        _out: Out<c_void>, _address: CuPtr, _size: usize, _kind: c_int, _flags: c_ulonglong,
    ) {
        // The only kind is a DMA buffer, which the device does not support.
        available()?;
        Err(Code::NOT_SUPPORTED)
    }
}
