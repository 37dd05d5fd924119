//! Allocates pinned host memory, and registers host memory of the caller. Invariant: the caller
//! owns registered memory; this library only records the registration.

use core::ffi::{c_uint, c_void};

use crate::abi::{Code, CuHost, CuPtr, Out, Result};
use crate::calls::exports;
use crate::memory::address::{AddressMap, HostRange, Kind, Range, change, next_id};
use crate::os::mapping::{self, PAGE_BYTES};
use crate::streams::refusals::outside_capture;
use crate::streams::submit::synchronize_context;

fn allocate(out: &Out<CuHost>, bytes: usize, flags: c_uint) -> Result {
    out.required()?;
    let context = outside_capture()?;
    if bytes == 0 || flags > 7 {
        return Err(Code::INVALID_VALUE);
    }
    let length = (bytes as u64).checked_next_multiple_of(PAGE_BYTES).ok_or(Code::OUT_OF_MEMORY)?;
    let base = mapping::map(None, length, libc::PROT_READ | libc::PROT_WRITE, None)?;
    mapping::poison(base, length);
    let kind = Kind::Host(HostRange { context: context.handle, device: context.device, flags, registered: false });
    change().insert(Range { base, size: bytes as u64, id: next_id(), kind });
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
        let base = pointer.0 as u64;
        let is_ours = |map: &AddressMap| {
            map.ranges.get(&base).is_some_and(|range| matches!(&range.kind, Kind::Host(memory) if !memory.registered))
        };
        if !is_ours(&change()) {
            return Err(Code::INVALID_VALUE);
        }
        synchronize_context(&context)?;
        let mut map = change();
        if !is_ours(&map) {
            return Err(Code::INVALID_VALUE);
        }
        if let Some(range) = map.ranges.remove(&base) {
            mapping::unmap(base, range.size.next_multiple_of(PAGE_BYTES));
        }
        Ok(())
    }

    6050 fn cuMemHostRegister_v2(pointer: CuHost, bytes: usize, flags: c_uint) {
        let context = outside_capture()?;
        let base = pointer.0 as u64;
        if base == 0 || bytes == 0 || flags > 15 {
            return Err(Code::INVALID_VALUE);
        }
        let mut map = change();
        if map.overlaps(base, bytes as u64) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        let kind = Kind::Host(HostRange { context: context.handle, device: context.device, flags, registered: true });
        map.insert(Range { base, size: bytes as u64, id: next_id(), kind });
        Ok(())
    }

    4000 fn cuMemHostUnregister(pointer: CuHost) {
        outside_capture()?;
        let mut map = change();
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
        let map = change();
        match map.find(pointer as u64).map(|range| &range.kind) {
            Some(Kind::Host(_)) if flags == 0 => device.set(pointer as u64),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    2030 fn cuMemHostGetFlags(flags: Out<c_uint>, pointer: *mut c_void) {
        outside_capture()?;
        let map = change();
        match map.find(pointer as u64).map(|range| &range.kind) {
            Some(Kind::Host(memory)) if !memory.registered => flags.set(memory.flags),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}
