//! The control memory of a job: in a memory file that a unique id names, or in a file of a
//! directory.
//!
//! Module `connect` chooses the file. Invariant: the file of an id stays open until its process
//! ends.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use peerweave_fake_common::random_word;

use crate::abi::structs::{UniqueId, word};
use crate::abi::{Code, Result, fail, invalid};
use crate::peers::Control;
use crate::peers::mapping::{map_bytes, open_of_process, system};

const PREFIX: &str = "peerweave-fake-nvshmem:";
const MAGIC: &[u8; 8] = b"pwfakenv";

/// Returns the start time of a process, which together with its process ID identifies the process
/// forever; `None` if the process has ended.
fn process_start(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The process name may contain spaces and brackets, so fields are counted after the last
    // bracket.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn set_length(file: &OwnedFd) -> Result {
    // SAFETY: the descriptor is open; the call accesses no memory of this process.
    match unsafe { libc::ftruncate(file.as_raw_fd(), size_of::<Control>() as libc::off_t) } {
        0 => Ok(()),
        _ => system("cannot set the length of shared memory"),
    }
}

/// Creates an id for memory of this process. The process must live until all PEs have connected.
pub(super) fn new_id() -> Result<UniqueId> {
    let random = random_word();
    let name = CString::new(format!("{PREFIX}{random:016x}")).expect("the text contains no zero byte");
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return system("cannot create shared memory");
    }
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    set_length(&file)?;
    let process = std::process::id();
    let start = process_start(process).unwrap_or_default();
    let mut internal = [0; 124];
    internal[..8].copy_from_slice(MAGIC);
    internal[8..12].copy_from_slice(&process.to_ne_bytes());
    // The file stays open until the process ends, because other PEs can connect at any time.
    internal[12..16].copy_from_slice(&file.into_raw_fd().to_ne_bytes());
    internal[16..24].copy_from_slice(&start.to_ne_bytes());
    internal[24..32].copy_from_slice(&random.to_ne_bytes());
    Ok(UniqueId { version: word(1, size_of::<UniqueId>()), internal })
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the range has the length of the array")
}

/// Returns the shared memory of the job with a unique id.
pub(super) fn of_id(id: &UniqueId) -> Result<&'static Control> {
    let bytes = &id.internal;
    if &bytes[..8] != MAGIC {
        return invalid("the unique id was not created by nvshmemx_get_uniqueid");
    }
    let process = u32::from_ne_bytes(number(bytes, 8));
    let fd = i32::from_ne_bytes(number(bytes, 12));
    let start = u64::from_ne_bytes(number(bytes, 16));
    let random = u64::from_ne_bytes(number(bytes, 24));
    if process_start(process) != Some(start) {
        return fail(Code::INTERNAL, "the process that created the unique id has ended");
    }
    let file = open_of_process(process, fd)?;
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    if !link.to_string_lossy().contains(&format!("{PREFIX}{random:016x}")) {
        return fail(Code::INTERNAL, "the memory that the unique id names no longer exists");
    }
    map(&file)
}

/// Returns the memory of a job that a launcher started, from a directory that its processes share.
pub(super) fn of_directory(directory: &str) -> Result<&'static Control> {
    let path = std::path::Path::new(directory).join("peerweave-fake-nvshmem");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let file = file.map(OwnedFd::from).or_else(|error| fail(Code::INTERNAL, format!("{}: {error}", path.display())))?;
    set_length(&file)?;
    map(&file)
}

fn map(file: &OwnedFd) -> Result<&'static Control> {
    let address = map_bytes(file, size_of::<Control>())?;
    // SAFETY: the page-aligned mapping has the size of a `Control` and is never unmapped. PEs of
    // this library write only valid values.
    Ok(unsafe { &*(address as *const Control) })
}
