//! Multicast objects. Kernels do not run, so tests store by the driver's copies and fills and by
//! `peerweave_fake_multicast_store`. A plain store of the host to a multicast address faults.

use core::ffi::{c_int, c_ulonglong, c_void};
use std::sync::Arc;

use crate::abi::{Code, CuDevice, CuMemHandle, CuPtr, In, MulticastProp, Out, Result};
use crate::calls::{exports, functions};
use crate::machine::current::current;
use crate::machine::driver::{Driver, driver};
use crate::machine::features::has_multicast;
use crate::memory::address::{Access, Kind, Need, Place, change};
use crate::memory::allocation::{Allocation, GRANULARITY, aligned, available, check_handle_types, find, publish};
use crate::memory::team::Team;

/// The recommended granularity: larger than the minimum, so that tests detect a confusion of the
/// two.
const RECOMMENDED_BYTES: u64 = 16 << 20;

fn supported() -> Result<&'static Driver> {
    let driver = available()?;
    if has_multicast() { Ok(driver) } else { Err(Code::NOT_SUPPORTED) }
}

fn check_prop(prop: &MulticastProp) -> Result {
    let types = c_int::try_from(prop.handle_types).map_err(|_| Code::INVALID_VALUE)?;
    check_handle_types(types)?;
    if prop.devices == 0 || prop.devices > 64 || prop.flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    Ok(())
}

fn team_of(allocation: &Allocation) -> Result<&Team> {
    allocation.team.as_ref().ok_or(Code::INVALID_VALUE)
}

fn bind(object: &Allocation, device: Option<CuDevice>, at: u64, memory: &Allocation, memory_at: u64, size: u64) -> Result {
    let team = team_of(object)?;
    aligned(&[at, memory_at, size])?;
    let bound = &memory.physical;
    let inside = |from: u64, whole: u64| from.checked_add(size).is_some_and(|end| end <= whole);
    if memory.is_multicast() || size == 0 || !inside(at, object.physical.size) || !inside(memory_at, bound.size) {
        return Err(Code::INVALID_VALUE);
    }
    // An object that other processes can import must not contain memory that those processes cannot
    // import.
    if object.physical.handle_types != 0 && bound.handle_types == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if device.is_some_and(|device| Some(device as usize) != bound.device) {
        return Err(Code::INVALID_DEVICE);
    }
    team.wait_for_devices()?;
    if !team.has_slot(bound.slot)? {
        return Err(Code::INVALID_DEVICE);
    }
    team.bind(at, bound, memory_at, size)
}

fn bind_memory(
    object: CuMemHandle,
    device: Option<CuDevice>,
    at: usize,
    memory: CuMemHandle,
    memory_at: usize,
    size: usize,
    flags: c_ulonglong,
) -> Result {
    supported()?;
    let (object, memory) = (find(object)?, find(memory)?);
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    bind(&object, device, at as u64, &memory, memory_at as u64, size as u64)
}

fn bind_address(
    object: CuMemHandle,
    device: Option<CuDevice>,
    at: usize,
    address: CuPtr,
    size: usize,
    flags: c_ulonglong,
) -> Result {
    supported()?;
    let object = find(object)?;
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let (memory, memory_at) = {
        let map = change();
        let range = map.find(address).ok_or(Code::INVALID_VALUE)?;
        let Kind::Mapped(mapped) = &range.kind else { return Err(Code::INVALID_VALUE) };
        if address + size as u64 > range.base + range.size {
            return Err(Code::INVALID_VALUE);
        }
        (Arc::clone(&mapped.allocation), mapped.offset + (address - range.base))
    };
    bind(&object, device, at as u64, &memory, memory_at, size as u64)
}

exports! {
    12010 fn cuMulticastCreate(handle: Out<CuMemHandle>, prop: In<MulticastProp>) {
        handle.required()?;
        supported()?;
        let prop = prop.get()?;
        check_prop(&prop)?;
        let size = prop.size as u64;
        aligned(&[size])?;
        if size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        handle.set(publish(Allocation::create_multicast(size, prop.handle_types, prop.devices)?))
    }

    12010 fn cuMulticastAddDevice(object: CuMemHandle, device: CuDevice) {
        let slot = supported()?.device(device)?.slot;
        team_of(&*find(object)?)?.add(slot)
    }

    12010 fn cuMulticastBindMem(
        object: CuMemHandle, at: usize, memory: CuMemHandle, memory_at: usize, size: usize, flags: c_ulonglong,
    ) {
        bind_memory(object, None, at, memory, memory_at, size, flags)
    }

    13010 fn cuMulticastBindMem_v2(
        object: CuMemHandle, device: CuDevice, at: usize, memory: CuMemHandle, memory_at: usize, size: usize,
        flags: c_ulonglong,
    ) {
        bind_memory(object, Some(device), at, memory, memory_at, size, flags)
    }

    12010 fn cuMulticastBindAddr(object: CuMemHandle, at: usize, address: CuPtr, size: usize, flags: c_ulonglong) {
        bind_address(object, None, at, address, size, flags)
    }

    13010 fn cuMulticastBindAddr_v2(
        object: CuMemHandle, device: CuDevice, at: usize, address: CuPtr, size: usize, flags: c_ulonglong,
    ) {
        bind_address(object, Some(device), at, address, size, flags)
    }

    12010 fn cuMulticastUnbind(object: CuMemHandle, device: CuDevice, at: usize, size: usize) {
        let slot = supported()?.device(device)?.slot;
        team_of(&*find(object)?)?.unbind(slot, at as u64, size as u64)
    }

    12010 fn cuMulticastGetGranularity(granularity: Out<usize>, prop: In<MulticastProp>, option: c_int) {
        granularity.required()?;
        supported()?;
        check_prop(&prop.get()?)?;
        match option {
            0 => granularity.set(GRANULARITY as usize),
            1 => granularity.set(RECOMMENDED_BYTES as usize),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

functions! {
    /// Fake only: has the effect of a kernel's store to a multicast address on the current
    /// context's device, immediately.
    ///
    /// Returns `CUDA_ERROR_INVALID_VALUE` if the bytes are not inside one multicast mapping that
    /// the device may write. Returns `CUDA_ERROR_ILLEGAL_ADDRESS` if a device of the team has no
    /// memory bound there, or if the process that bound the memory has ended.
    fn peerweave_fake_multicast_store(address: CuPtr, bytes: *const c_void, length_bytes: usize) {
        let context = current()?;
        let driver = driver()?;
        if bytes.is_null() || length_bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let access = Access { device: context.device, need: Need::Write, pageable: false, queued: false };
        let place = change().place(driver, address, length_bytes as u64, access)?;
        let Place::Multicast { allocation, offset } = place else { return Err(Code::INVALID_VALUE) };
        // SAFETY: the caller promised this many readable bytes.
        allocation.replicate(offset, unsafe { core::slice::from_raw_parts(bytes.cast::<u8>(), length_bytes) })
    }
}
