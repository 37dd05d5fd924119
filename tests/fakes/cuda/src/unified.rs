//! Managed memory's hints, and memory of other interfaces. Allocating managed memory is in [`crate::memory`].
//! Invariant: a hint changes nothing that a program can see but its order in the stream.

use core::ffi::{c_int, c_uint};

use crate::abi::{Code, CuPtr, CuStream, Location, Result};
use crate::address::Kind;
use crate::context;
use crate::driver::driver;
use crate::memory::change;
use crate::stream;
use crate::work::Work;

/// Bytes of one managed allocation.
fn check_managed(address: CuPtr, bytes: usize) -> Result {
    let map = change(driver()?);
    let range = map.find(address).ok_or(Code::INVALID_VALUE)?;
    let inside = address.checked_add(bytes as u64).is_some_and(|end| end <= range.base + range.size);
    match &range.kind {
        Kind::Device(memory) if memory.managed && inside && bytes > 0 => Ok(()),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// A device, or the host in one of its forms.
fn check_location(location: Location) -> Result {
    match location.kind {
        Location::DEVICE => driver()?.device(location.id).map(|_| ()),
        2..=4 => Ok(()),
        _ => Err(Code::INVALID_VALUE),
    }
}

exports! {
    12020 fn cuMemAdvise_v2(address: CuPtr, bytes: usize, advice: c_int, location: Location) {
        context::current()?;
        if !(1..=6).contains(&advice) {
            return Err(Code::INVALID_VALUE);
        }
        check_location(location)?;
        check_managed(address, bytes)
    }

    12020 fn cuMemPrefetchAsync_v2(address: CuPtr, bytes: usize, location: Location, flags: c_uint, stream: CuStream) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let stream = stream::resolve(stream)?;
        check_location(location)?;
        check_managed(address, bytes)?;
        // All places are the same memory: only the order in the stream is left to keep.
        stream.submit(Work::Empty)
    }

    6000 fn cuStreamAttachMemAsync(stream: CuStream, address: CuPtr, bytes: usize, flags: c_uint) {
        let stream = stream::resolve(stream)?;
        if !matches!(flags, 1 | 2 | 4) {
            return Err(Code::INVALID_VALUE);
        }
        check_managed(address, bytes.max(1))?;
        stream.submit(Work::Empty)
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
