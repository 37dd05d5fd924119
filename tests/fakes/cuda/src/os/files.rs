//! Memory files, which have a label instead of a name in a directory.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::abi::{Code, Result};

/// Prefix of the names of this library's files, by which an import recognizes them.
const PREFIX: &str = "peerweave-fake-cuda:";

/// Creates a memory file of fixed length.
pub(crate) fn memory_file(label: &str, length_bytes: u64) -> Result<OwnedFd> {
    let name = CString::new(format!("{PREFIX}{label}")).map_err(|_| Code::OPERATING_SYSTEM)?;
    // SAFETY: the name is a NUL-terminated string that outlives the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Code::OPERATING_SYSTEM);
    }
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the descriptor is open; the call accesses no memory of this process.
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

/// Returns whether the last part of a file's label is this number.
pub(crate) fn has_number(file: &OwnedFd, number: u64) -> bool {
    label(file).is_some_and(|label| label.rsplit(':').next() == Some(number.to_string().as_str()))
}

/// Opens a file that this or another process has open; `None` if the process or the file no longer
/// exists.
pub(super) fn open_of_process(pid: u32, fd: i32) -> Option<OwnedFd> {
    let file: File = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}")).ok()?;
    Some(file.into())
}

/// Opens a file a second time, so that the new descriptor has locks of its own.
pub(crate) fn reopen(file: &OwnedFd) -> Result<OwnedFd> {
    open_of_process(std::process::id(), file.as_raw_fd()).ok_or(Code::OPERATING_SYSTEM)
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

/// Duplicates a descriptor of the caller. The caller keeps its own descriptor.
pub(crate) fn duplicate_of_caller(fd: i32) -> Result<OwnedFd> {
    // SAFETY: the call accesses no memory; duplicating a number that is not a descriptor fails.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Frees the pages of a file; its length stays the same.
pub(crate) fn discard(file: &OwnedFd, offset: u64, length_bytes: u64) {
    // SAFETY: the descriptor is open; the call accesses no memory of this process.
    unsafe {
        libc::fallocate(
            file.as_raw_fd(),
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            offset as libc::off_t,
            length_bytes as libc::off_t,
        )
    };
}
