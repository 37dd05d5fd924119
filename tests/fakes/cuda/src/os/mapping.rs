//! Mappings of files and of reserved addresses. Invariant: a mapping replaces only addresses that
//! this library reserved or that the kernel chose.

use core::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::abi::{Code, Result};
use crate::calls::settings::{VARIABLES, variable};

/// Page size in bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Content of memory that was never written.
const POISON: u8 = 0xC3;

/// Maps a file, or only reserves addresses if `file` is `None`. With `at`, replaces the mapping at
/// that address; otherwise, the kernel chooses the address.
pub(crate) fn map(at: Option<u64>, length_bytes: u64, protection: i32, file: Option<(&OwnedFd, u64)>) -> Result<u64> {
    let mut flags = libc::MAP_NORESERVE;
    let (fd, offset) = match file {
        Some((file, offset)) => {
            flags |= libc::MAP_SHARED;
            (file.as_raw_fd(), offset)
        }
        None => {
            flags |= libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            (-1, 0)
        }
    };
    if at.is_some() {
        flags |= libc::MAP_FIXED;
    }
    // SAFETY: without `at` the kernel chooses free addresses; with `at`, the addresses belong to a
    // reservation of this library (module invariant).
    let address = unsafe {
        libc::mmap(at.unwrap_or(0) as *mut c_void, length_bytes as usize, protection, flags, fd, offset as libc::off_t)
    };
    if address == libc::MAP_FAILED { Err(Code::OUT_OF_MEMORY) } else { Ok(address as u64) }
}

/// Reserves addresses at `wish`, or at another address if `wish` is 0, in use or not aligned.
pub(crate) fn reserve(size: u64, alignment: u64, wish: u64) -> Result<u64> {
    let whole = size.checked_add(alignment).ok_or(Code::OUT_OF_MEMORY)?;
    if wish != 0 && wish.is_multiple_of(alignment) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: with NOREPLACE the kernel maps these addresses only if they are free.
        let got = unsafe { libc::mmap(wish as *mut c_void, size as usize, libc::PROT_NONE, flags, -1, 0) };
        if got as u64 == wish {
            return Ok(wish);
        }
        if got != libc::MAP_FAILED {
            unmap(got as u64, size);
        }
    }
    let start = map(None, whole, libc::PROT_NONE, None)?;
    let base = start.next_multiple_of(alignment);
    if base > start {
        unmap(start, base - start);
    }
    if start + whole > base + size {
        unmap(base + size, start + whole - (base + size));
    }
    Ok(base)
}

/// Changes the permitted access to mapped bytes.
pub(crate) fn protect(address: u64, length_bytes: u64, protection: i32) -> Result {
    // SAFETY: the bytes belong to a mapping of this library (module invariant).
    let failed = unsafe { libc::mprotect(address as *mut c_void, length_bytes as usize, protection) } != 0;
    if failed { Err(Code::OPERATING_SYSTEM) } else { Ok(()) }
}

/// Unmaps addresses.
pub(crate) fn unmap(address: u64, length_bytes: u64) {
    // SAFETY: the bytes belong to a mapping of this library, and the caller has removed its record.
    unsafe { libc::munmap(address as *mut c_void, length_bytes as usize) };
}

/// Fills new memory with the poison value: all of a small piece, both ends of a large one.
pub(crate) fn poison(address: u64, length_bytes: u64) {
    if VARIABLES.flag(variable::NO_POISON) {
        return;
    }
    const WHOLE: u64 = 16 << 20;
    const END: u64 = 1 << 20;
    let fill = |offset: u64, bytes: u64| {
        // SAFETY: the bytes are part of a new writable mapping, whose address no other code knows
        // yet.
        unsafe { core::ptr::write_bytes((address + offset) as *mut u8, POISON, bytes as usize) }
    };
    if length_bytes <= WHOLE {
        fill(0, length_bytes);
    } else {
        fill(0, END);
        fill(length_bytes - END, END);
    }
}
