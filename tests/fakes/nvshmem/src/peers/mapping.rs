//! Maps memory of files that other processes may have opened.
//!
//! Invariant: an address is unmapped only after all its users have stopped using it.

use core::ffi::c_void;
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::abi::{Code, Result, fail};

/// Returns a failure with the last error of the operating system.
pub(crate) fn system<T>(what: &str) -> Result<T> {
    fail(Code::INTERNAL, format!("{what}: {}", std::io::Error::last_os_error()))
}

/// Opens a file that this or another process has open.
pub(crate) fn open_of_process(process: u32, fd: i32) -> Result<OwnedFd> {
    let path = format!("/proc/{process}/fd/{fd}");
    let opened = OpenOptions::new().read(true).write(true).open(&path);
    opened.map(OwnedFd::from).or_else(|error| fail(Code::INTERNAL, format!("{path}: {error}")))
}

/// Maps bytes of a file for this process, and returns the address.
pub(crate) fn map_bytes(file: &OwnedFd, bytes: usize) -> Result<usize> {
    // SAFETY: the kernel chooses free addresses.
    let address = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED | libc::MAP_NORESERVE, file.as_raw_fd(), 0)
    };
    if address == libc::MAP_FAILED { system("cannot map shared memory") } else { Ok(address.addr()) }
}

/// Unmaps bytes that [`map_bytes`] mapped.
pub(crate) fn unmap_bytes(address: usize, bytes: usize) {
    // SAFETY: the bytes were mapped by `map_bytes`, and all users have stopped using them.
    unsafe { libc::munmap(address as *mut c_void, bytes) };
}

/// Reserves addresses as a substitute for multicast memory. An access to these addresses faults.
pub(crate) fn reserve(bytes: usize) -> Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the kernel chooses free addresses.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    if address == libc::MAP_FAILED { system("cannot reserve addresses") } else { Ok(address.addr()) }
}
