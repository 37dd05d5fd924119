//! Pinned memory of the host: allocates it, and registers memory of the caller. Copies from and to
//! it are in [`crate::copy`]. Invariant: the caller owns registered memory; this library only
//! records it.

use core::ffi::{c_uint, c_void};

use crate::abi::{Code, CuHost, CuPtr, Out, Result};
use crate::address::{HostRange, Kind, Range, next_id};
use crate::arena::PAGE_BYTES;
use crate::calls::exports;
use crate::driver::driver;
use crate::memory::change;
use crate::share;
use crate::stream::outside_capture;

fn allocate(out: &Out<CuHost>, bytes: usize, flags: c_uint) -> Result {
    out.required()?;
    let context = outside_capture()?;
    if bytes == 0 || flags > 7 {
        return Err(Code::INVALID_VALUE);
    }
    let length = (bytes as u64).checked_next_multiple_of(PAGE_BYTES).ok_or(Code::OUT_OF_MEMORY)?;
    let base = share::map(None, length, libc::PROT_READ | libc::PROT_WRITE, None)?;
    share::poison(base, length);
    let kind = Kind::Host(HostRange { context: context.handle, device: context.device, flags, registered: false });
    change(driver()?).insert(Range { base, size: bytes as u64, id: next_id(), kind });
    out.set(CuHost(base as usize))
}

exports! {
    3020 fn cuMemAllocHost_v2(pointer: Out<CuHost>, bytes: usize) {
        allocate(&pointer, bytes, 0)
    }

    2020 fn cuMemHostAlloc(pointer: Out<CuHost>, bytes: usize, flags: c_uint) {
        allocate(&pointer, bytes, flags)
    }

    2000 fn cuMemFreeHost(pointer: CuHost) {
        let context = outside_capture()?;
        let driver = driver()?;
        let base = pointer.0 as u64;
        let is_ours = |map: &crate::address::AddressMap| {
            map.ranges.get(&base).is_some_and(|range| matches!(&range.kind, Kind::Host(memory) if !memory.registered))
        };
        if !is_ours(&change(driver)) {
            return Err(Code::INVALID_VALUE);
        }
        context.synchronize()?;
        let mut map = change(driver);
        if !is_ours(&map) {
            return Err(Code::INVALID_VALUE);
        }
        if let Some(range) = map.ranges.remove(&base) {
            share::unmap(base, range.size.next_multiple_of(PAGE_BYTES));
        }
        Ok(())
    }

    6050 fn cuMemHostRegister_v2(pointer: CuHost, bytes: usize, flags: c_uint) {
        let context = outside_capture()?;
        let base = pointer.0 as u64;
        if base == 0 || bytes == 0 || flags > 15 {
            return Err(Code::INVALID_VALUE);
        }
        let mut map = change(driver()?);
        if map.overlaps(base, bytes as u64) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        let kind = Kind::Host(HostRange { context: context.handle, device: context.device, flags, registered: true });
        map.insert(Range { base, size: bytes as u64, id: next_id(), kind });
        Ok(())
    }

    4000 fn cuMemHostUnregister(pointer: CuHost) {
        outside_capture()?;
        let mut map = change(driver()?);
        let base = pointer.0 as u64;
        match map.ranges.get(&base).map(|range| &range.kind) {
            Some(Kind::Host(memory)) if memory.registered => {
                map.ranges.remove(&base);
                Ok(())
            }
            _ => Err(Code::HOST_MEMORY_NOT_REGISTERED),
        }
    }

    3020 fn cuMemHostGetDevicePointer_v2(device: Out<CuPtr>, pointer: *mut c_void, flags: c_uint) {
        outside_capture()?;
        let map = change(driver()?);
        match map.find(pointer as u64).map(|range| &range.kind) {
            Some(Kind::Host(_)) if flags == 0 => device.set(pointer as u64),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    2030 fn cuMemHostGetFlags(flags: Out<c_uint>, pointer: *mut c_void) {
        outside_capture()?;
        let map = change(driver()?);
        match map.find(pointer as u64).map(|range| &range.kind) {
            Some(Kind::Host(memory)) if !memory.registered => flags.set(memory.flags),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}
