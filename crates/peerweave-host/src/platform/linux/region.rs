//! A range of memory that several processes can map. The range is a memory file without a name. The
//! system frees the file when the last process that maps the file has ended.

use crate::platform::ShareError;
use peerweave_bootstrap::Rendezvous;
use peerweave_fork::ForkGuard;
use peerweave_types::Pe;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A memory file that this process has mapped. All bytes of the file were initially zero.
#[derive(Debug)]
pub(crate) struct Region {
    base: *mut u8,
    bytes: usize,
    /// Detects whether this process is a forked child of the process that created the mapping. A
    /// forked child does not have the mapping.
    guard: ForkGuard,
}

// SAFETY: the shared data are numbers that never change, so they need no synchronization. The
// memory is accessed through `Segments`, which has its own argument. The conformance tests on
// threads would catch an error.
unsafe impl Send for Region {}
// SAFETY: as for Send, because the same numbers are shared, without synchronization. The same tests
// would catch an error.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates `bytes` bytes, which only this process can access. The address is a multiple of
    /// `align`. `what` describes the range, for error messages.
    pub(crate) fn own(bytes: usize, align: usize, what: &str) -> io::Result<Self> {
        Self::of_file(create(bytes)?.as_fd(), bytes, align, what)
    }

    /// Maps one range of memory in all processes of a job, so that the processes share it. PE 0
    /// passes `creates` as `true`, and creates the memory file for the range. Through the
    /// rendezvous, the other members receive a descriptor of this file. Collective over `members`.
    pub(crate) fn shared(
        rendezvous: &Rendezvous,
        members: &[Pe],
        creates: bool,
        (bytes, align): (usize, usize),
        what: &str,
        within: Duration,
    ) -> Result<Self, ShareError> {
        let created = if creates { Some(create(bytes)?) } else { None };
        let file = rendezvous.share_descriptor_within(members, created, within)?;
        Ok(Self::of_file(file.as_fd(), bytes, align, what)?)
    }

    fn of_file(file: BorrowedFd<'_>, bytes: usize, align: usize, what: &str) -> io::Result<Self> {
        let size = rustix::fs::fstat(file)?.st_size;
        if u64::try_from(size).ok() != Some(bytes as u64) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the memory file has {size} bytes, expected {bytes}: PE 0 uses different options or a different version"),
            ));
        }
        // If the file shrank, accesses would raise SIGBUS.
        let seals = rustix::fs::fcntl_get_seals(file)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the memory file is not sealed, expected a file whose size cannot change",
            ));
        }
        let base = map_aligned(file, bytes, align).map_err(|error| too_large(bytes, what, &error))?;
        let region = Self { base, bytes, guard: ForkGuard::new() };
        // A forked child does not belong to the job and must not write to the shared memory.
        // SAFETY: the range was just mapped, and no child of this process needs it.
        unsafe { rustix::mm::madvise(base.cast(), bytes, rustix::mm::Advice::LinuxDontFork)? };
        Ok(region)
    }

    /// Returns the address at which the range starts.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }
}

/// Maps `bytes` bytes of `file` at an address that is a multiple of `align`. Both numbers must be
/// multiples of the page size.
///
/// The system aligns mappings only to pages. So this function reserves a larger range and unmaps
/// the parts around the aligned part.
fn map_aligned(file: BorrowedFd<'_>, bytes: usize, align: usize) -> io::Result<*mut u8> {
    let span = bytes.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: this is a new mapping at an address that the system chooses. It replaces no other
    // mapping.
    let reserved = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), span, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)?
    };
    let before = reserved.addr().next_multiple_of(align) - reserved.addr();
    let base = reserved.wrapping_byte_add(before);
    // SAFETY: the mapping replaces `bytes` bytes of the reservation, which no other code uses.
    let mapped = unsafe {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        rustix::mm::mmap(base, bytes, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0)
    };
    let parts = match mapped {
        Ok(_) => [(reserved, before), (base.wrapping_byte_add(bytes), align - before)],
        Err(_) => [(reserved, span), (base, 0)],
    };
    for (at, bytes) in parts {
        if bytes > 0 {
            // SAFETY: this is a part of the reservation in which no file was mapped.
            unsafe { rustix::mm::munmap(at, bytes)? };
        }
    }
    Ok(mapped?.cast())
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.guard.is_forked() {
            return;
        }
        // SAFETY: `of_file` mapped the range. All pointers into the range belong to values that own
        // the `Mapping` of this region: `Shared` owns the `Mapping`, and threads own a `Shared`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Returns the error for a failed mapping of `bytes` bytes. The error contains this process's limit
/// for mapped memory, and names the setting that makes the heap smaller.
fn too_large(bytes: usize, what: &str, error: &io::Error) -> io::Error {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    let limit = limit.map_or(String::new(), |limit| format!(" (this process may map at most {limit} bytes, see ulimit -v)"));
    let text = format!("cannot map {bytes} bytes for {what}{limit}: {error}; set PEERWEAVE_HEAP_BYTES to a smaller value");
    io::Error::new(error.kind(), text)
}

/// Creates the memory file. The file is sparse, and sealed so that its size cannot change.
///
/// Creating a file above the limit on file sizes would end the process with a signal. So this
/// function checks the limit and returns an error instead.
fn create(bytes: usize) -> io::Result<OwnedFd> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if let Some(limit) = limit.filter(|limit| *limit < bytes as u64) {
        let text = format!(
            "the heaps of all PEs need one file of {bytes} bytes, but this process may create files of at most {limit} bytes (ulimit -f); set PEERWEAVE_HEAP_BYTES to a smaller value"
        );
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    let file = rustix::fs::memfd_create("peerweave", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    rustix::fs::fcntl_add_seals(file.as_fd(), SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    const ALIGN: usize = 2 << 20;

    fn map(file: &OwnedFd, bytes: usize) -> io::Result<Region> {
        Region::of_file(file.as_fd(), bytes, ALIGN, "a test")
    }

    #[test]
    fn two_mappings_of_one_file_share_memory() {
        let file = create(2 * ALIGN).unwrap();
        let [one, two] = [map(&file, 2 * ALIGN).unwrap(), map(&file, 2 * ALIGN).unwrap()];
        // SAFETY: the start of a mapping is aligned, and atomics accept any bytes.
        let [one, two] = [one.base(), two.base()].map(|base| unsafe { &*base.cast::<AtomicU64>() });
        assert_eq!(two.load(Ordering::Relaxed), 0, "the memory is not initially zero");
        one.store(7, Ordering::Relaxed);
        assert_eq!(two.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn file_of_unexpected_size_is_refused() {
        let refused = map(&create(ALIGN).unwrap(), 2 * ALIGN).unwrap_err();
        assert!(refused.to_string().contains("different options"), "{refused}");
    }

    #[test]
    fn unsealed_file_is_refused() {
        let file = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, ALIGN as u64).unwrap();
        assert!(map(&file, ALIGN).is_err());
    }
}
