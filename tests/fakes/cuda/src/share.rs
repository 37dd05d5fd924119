//! Memory of the operating system: files without a name, mappings, and access to a file of another
//! process. Invariant: a mapping replaces only addresses that this library reserved or that the
//! kernel chose.

use core::ffi::c_void;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::abi::{Code, Result};
use crate::arena::POISON;
use crate::calls::settings::{self, variable};

/// Prefix of the names of this library's files, by which an import recognizes them.
pub(crate) const PREFIX: &str = "peerweave-fake-cuda:";

/// Creates a memory file of fixed length.
pub(crate) fn memory_file(label: &str, length_bytes: u64) -> Result<OwnedFd> {
    let name = CString::new(format!("{PREFIX}{label}")).map_err(|_| Code::OPERATING_SYSTEM)?;
    // SAFETY: the name is a NUL-terminated string that outlives the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Code::OPERATING_SYSTEM);
    }
    // SAFETY: the kernel has just given this descriptor to nobody else.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an open descriptor and a length.
    if unsafe { libc::ftruncate(file.as_raw_fd(), length_bytes as libc::off_t) } != 0 {
        return Err(Code::OPERATING_SYSTEM);
    }
    Ok(file)
}

/// Returns the label of a file made by [`memory_file`], in this process or another; `None` for any
/// other file.
pub(crate) fn label(file: &OwnedFd) -> Option<String> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let text = link.to_str()?.strip_prefix("/memfd:")?.strip_prefix(PREFIX)?;
    Some(text.strip_suffix(" (deleted)").unwrap_or(text).to_owned())
}

/// Opens a file of a process, which may be another one; `None` if the process or the file no longer
/// exists.
pub(crate) fn open_of_process(pid: u32, fd: i32) -> Option<OwnedFd> {
    let file: File = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}")).ok()?;
    Some(file.into())
}

/// Returns the length of a file.
pub(crate) fn length(file: &OwnedFd) -> Result<u64> {
    let file = File::from(duplicate(file)?);
    file.metadata().map(|metadata| metadata.len()).map_err(|_| Code::OPERATING_SYSTEM)
}

/// Returns a second descriptor of the same file.
pub(crate) fn duplicate(file: &OwnedFd) -> Result<OwnedFd> {
    file.as_fd().try_clone_to_owned().map_err(|_| Code::OPERATING_SYSTEM)
}

/// Returns the start time of a process, which together with its number identifies it forever;
/// `None` if the process has ended.
pub(crate) fn process_start(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold spaces and brackets: fields are counted behind the last bracket.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Maps a file, or only reserves addresses, at `at` (replacing the present mapping) or at an
/// address chosen by the kernel.
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
    // SAFETY: without `at` the kernel chooses free addresses; with it they are of a reservation of
    // this library (module invariant).
    let address = unsafe {
        libc::mmap(at.unwrap_or(0) as *mut c_void, length_bytes as usize, protection, flags, fd, offset as libc::off_t)
    };
    if address == libc::MAP_FAILED { Err(Code::OUT_OF_MEMORY) } else { Ok(address as u64) }
}

/// Changes the permitted access to mapped bytes.
pub(crate) fn protect(address: u64, length_bytes: u64, protection: i32) -> Result {
    // SAFETY: the bytes are of a mapping of this library (module invariant).
    let failed = unsafe { libc::mprotect(address as *mut c_void, length_bytes as usize, protection) } != 0;
    if failed { Err(Code::OPERATING_SYSTEM) } else { Ok(()) }
}

/// Unmaps addresses.
pub(crate) fn unmap(address: u64, length_bytes: u64) {
    // SAFETY: the bytes are of a mapping of this library, whose record the caller removed before.
    unsafe { libc::munmap(address as *mut c_void, length_bytes as usize) };
}

/// Frees the pages of a file; its length stays the same.
pub(crate) fn discard(file: &OwnedFd, offset: u64, length_bytes: u64) {
    // SAFETY: an open descriptor and a range.
    unsafe {
        libc::fallocate(
            file.as_raw_fd(),
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            offset as libc::off_t,
            length_bytes as libc::off_t,
        )
    };
}

/// Fills new memory with the poison value: all of a small piece, both ends of a large one.
pub(crate) fn poison(address: u64, length_bytes: u64) {
    if settings::switch(variable::NO_POISON) {
        return;
    }
    const WHOLE: u64 = 16 << 20;
    const END: u64 = 1 << 20;
    let fill = |offset: u64, bytes: u64| {
        // SAFETY: a part of bytes that were just mapped for writing and that nobody else knows yet.
        unsafe { core::ptr::write_bytes((address + offset) as *mut u8, POISON, bytes as usize) }
    };
    if length_bytes <= WHOLE {
        fill(0, length_bytes);
    } else {
        fill(0, END);
        fill(length_bytes - END, END);
    }
}
