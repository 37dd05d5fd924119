//! The memory file that holds all segments, and its mapping. The file has no name, so the system
//! frees it when the last process that maps it has ended.
//!
//! The content is described in `layout.rs`.

use crate::memory::layout::{Layout, Segments};
use peerweave_fork::ForkGuard;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A mapped memory file.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    bytes: usize,
    segments: Segments,
    /// Detects a forked child, which does not have the mapping.
    guard: ForkGuard,
}

// SAFETY: the shared data are numbers that never change, so they need no synchronization. The
// memory is accessed through `Segments`, which has its own argument. The conformance tests on
// threads would catch an error.
unsafe impl Send for Mapping {}
// SAFETY: as for Send: the same numbers are shared, without synchronization. The same tests would
// catch an error.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the file of all segments.
    pub(crate) fn new(file: BorrowedFd<'_>, layout: Layout) -> io::Result<Self> {
        let bytes = layout.total_bytes();
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
                "the memory file is not sealed, expected one whose size cannot change",
            ));
        }
        let base = map_aligned(file, bytes, layout.align()).map_err(|error| too_large(&layout, &error))?;
        // A forked child does not belong to the job and must not write here.
        // SAFETY: the range was just mapped, and no child of this process needs it.
        unsafe { rustix::mm::madvise(base.cast(), bytes, rustix::mm::Advice::LinuxDontFork)? };
        // SAFETY: [L1] `base` is a new shared mapping of a file of exactly that size, which started
        // as zeros; `Mapping` keeps it.
        let segments = unsafe { Segments::new(base, layout) };
        Ok(Self { base, bytes, segments, guard: ForkGuard::new() })
    }

    /// Returns the segments in the mapping.
    pub(crate) fn segments(&self) -> Segments {
        self.segments
    }
}

/// Maps `bytes` bytes of `file` at a multiple of `align`, both multiples of the page.
///
/// The system aligns mappings to pages only. So this reserves a larger range and unmaps the rest
/// around the aligned part.
fn map_aligned(file: BorrowedFd<'_>, bytes: usize, align: usize) -> io::Result<*mut u8> {
    let span = bytes.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: a new mapping at an address that the system chooses; it replaces nothing.
    let reserved = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), span, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)?
    };
    let before = reserved.addr().next_multiple_of(align) - reserved.addr();
    let base = reserved.wrapping_byte_add(before);
    // SAFETY: replaces `bytes` bytes of the reservation, which is empty and known only here.
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
            // SAFETY: a part of the reservation in which no file was mapped.
            unsafe { rustix::mm::munmap(at, bytes)? };
        }
    }
    Ok(mapped?.cast())
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.guard.is_forked() {
            return;
        }
        // SAFETY: `new` mapped the range; all pointers into it belong to values that hold this
        // `Mapping` (`Shared` owns it, and threads own a `Shared`).
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Returns the error for a mapping that the limits of this process do not allow. The error tells
/// the user which setting to change.
fn too_large(layout: &Layout, error: &io::Error) -> io::Error {
    let Layout { n_pes, heap_bytes, .. } = layout;
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    let limit = limit.map_or(String::new(), |limit| format!(", the limit of this process is {limit} (ulimit -v)"));
    let text = format!(
        "cannot map {} bytes for {n_pes} PEs with {heap_bytes} bytes of heap each{limit}: {error}; set PEERWEAVE_HEAP_BYTES to a smaller value",
        layout.total_bytes()
    );
    io::Error::new(error.kind(), text)
}

/// Creates the memory file: sparse, and sealed so that its size cannot change.
///
/// A file above the limit on file sizes would end the process by a signal, so this function returns
/// an error instead.
pub(crate) fn create(layout: &Layout) -> io::Result<OwnedFd> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if let Some(limit) = limit.filter(|limit| *limit < layout.total_bytes() as u64) {
        let text = format!(
            "the heaps of all PEs are one file of {} bytes, the limit of this process is {limit} (ulimit -f); set PEERWEAVE_HEAP_BYTES to a smaller value",
            layout.total_bytes()
        );
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    let file = rustix::fs::memfd_create("peerweave", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, layout.total_bytes() as u64)?;
    rustix::fs::fcntl_add_seals(file.as_fd(), SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_of_one_file_share_their_words() {
        let layout = Layout::new(2, 1 << 20).unwrap();
        let file = create(&layout).unwrap();
        let one = Mapping::new(file.as_fd(), layout).unwrap();
        let two = Mapping::new(file.as_fd(), layout).unwrap();
        assert_eq!(two.segments().page(1).state.load(Ordering::Relaxed), 0, "starts as zeros");
        one.segments().page(1).state.store(7, Ordering::Relaxed);
        assert_eq!(two.segments().page(1).state.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn mapping_starts_at_the_alignment_of_its_layout() {
        for heap_bytes in [1 << 20, 5 << 20, 100 << 20, 3 << 30] {
            let layout = Layout::new(2, heap_bytes).unwrap();
            let file = create(&layout).unwrap();
            let mapping = Mapping::new(file.as_fd(), layout).unwrap();
            for pe in 0..2 {
                let page: *const _ = mapping.segments().page(pe);
                assert!(page.addr().is_multiple_of(layout.align()), "{page:?}, alignment {}", layout.align());
            }
        }
    }

    #[test]
    fn file_of_another_layout_is_refused() {
        let file = create(&Layout::new(2, 1 << 20).unwrap()).unwrap();
        let refused = Mapping::new(file.as_fd(), Layout::new(3, 1 << 20).unwrap()).unwrap_err();
        assert!(refused.to_string().contains("different options"), "{refused}");
    }

    #[test]
    fn unsealed_file_is_refused() {
        let layout = Layout::new(1, 1 << 20).unwrap();
        let file = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, layout.total_bytes() as u64).unwrap();
        assert!(Mapping::new(file.as_fd(), layout).is_err());
    }
}
