//! Hints for managed memory, and refused imports of external memory. Invariant: a hint has no
//! effect that a program can observe except its order in the stream.

use core::ffi::{c_int, c_uint};

use crate::abi::{Code, CuDevice, CuPtr, CuStream, Location, Result};
use crate::calls::exports;
use crate::machine::current::current;
use crate::machine::driver::driver;
use crate::memory::address::{Kind, change};
use crate::streams::stream::resolve;
use crate::streams::submit::submit;
use crate::work::piece::Work;

/// Checks that the bytes lie in one managed allocation.
fn check_managed(address: CuPtr, bytes: usize) -> Result {
    let map = change();
    let range = map.find(address).ok_or(Code::INVALID_VALUE)?;
    let inside = address.checked_add(bytes as u64).is_some_and(|end| end <= range.base + range.size);
    match &range.kind {
        Kind::Device(memory) if memory.managed && inside && bytes > 0 => Ok(()),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Checks a location: a device, the host, or a NUMA node of the host.
fn check_location(location: Location) -> Result {
    match location.kind {
        Location::DEVICE => driver()?.device(location.id).map(|_| ()),
        2..=4 => Ok(()),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn advise(address: CuPtr, bytes: usize, advice: c_int, location: Location) -> Result {
    current()?;
    if !(1..=6).contains(&advice) {
        return Err(Code::INVALID_VALUE);
    }
    check_location(location)?;
    check_managed(address, bytes)
}

fn prefetch(address: CuPtr, bytes: usize, location: Location, stream: CuStream) -> Result {
    let stream = resolve(stream)?;
    check_location(location)?;
    check_managed(address, bytes)?;
    // All locations are the same host memory, so the prefetch only takes its place in the order of
    // the stream.
    submit(&stream, Work::Empty)
}

/// Converts a device number to a location; -1 is the host. Older functions take device numbers
/// instead of a `CUmemLocation`.
fn location_of(device: CuDevice) -> Location {
    if device == -1 { Location { kind: 2, id: 0 } } else { Location { kind: Location::DEVICE, id: device } }
}

exports! {
    8000 fn cuMemAdvise(address: CuPtr, bytes: usize, advice: c_int, device: CuDevice) {
        advise(address, bytes, advice, location_of(device))
    }

    8000 fn cuMemPrefetchAsync(address: CuPtr, bytes: usize, device: CuDevice, stream: CuStream) {
        prefetch(address, bytes, location_of(device), stream)
    }

    12020 fn cuMemAdvise_v2(address: CuPtr, bytes: usize, advice: c_int, location: Location) {
        advise(address, bytes, advice, location)
    }

    12020 fn cuMemPrefetchAsync_v2(address: CuPtr, bytes: usize, location: Location, flags: c_uint, stream: CuStream) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        prefetch(address, bytes, location, stream)
    }

    6000 fn cuStreamAttachMemAsync(stream: CuStream, address: CuPtr, bytes: usize, flags: c_uint) {
        let stream = resolve(stream)?;
        if !matches!(flags, 1 | 2 | 4) {
            return Err(Code::INVALID_VALUE);
        }
        check_managed(address, bytes.max(1))?;
        submit(&stream, Work::Empty)
    }

    10000 fn cuImportExternalMemory(_memory: usize, _description: usize) {
        driver()?;
        Err(Code::NOT_SUPPORTED)
    }

    10000 fn cuExternalMemoryGetMappedBuffer(_address: usize, _memory: usize, _description: usize) {
        driver()?;
        Err(Code::INVALID_HANDLE)
    }

    10000 fn cuDestroyExternalMemory(_memory: usize) {
        driver()?;
        Err(Code::INVALID_HANDLE)
    }
}
