//! Shared memory that all PEs of a machine map. Each PE has its own words, which the other PEs
//! read.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::AtomicU64;

use peerweave_bootstrap::Rendezvous;
use peerweave_bootstrap::survivors::SurvivorWords;
use peerweave_core::Error;
use peerweave_types::Pe;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::backend::error::of_set_up;

/// Creates an anonymous file in memory (memfd) of `bytes` zero bytes. The size of the file cannot
/// change.
fn file(bytes: usize) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("peerweave-calls", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
}

/// Shared memory in which one PE records its calls as 64-bit words. The memory is mapped into this
/// process.
pub(super) struct Pages {
    base: *mut u64,
    words: usize,
}

// SAFETY: shared: words of a mapping. Synchronised: they are only accessed as atomics. A failure
// would be caught by the test `collectives_of_different_kinds_or_lengths_are_a_mismatch`.
unsafe impl Send for Pages {}
// SAFETY: shared: words of a mapping. Synchronised: they are only accessed as atomics. A failure
// would be caught by the test `collectives_of_different_kinds_or_lengths_are_a_mismatch`.
unsafe impl Sync for Pages {}

impl Pages {
    /// Creates shared memory of `bytes` zero bytes for each PE, and maps the memory of all PEs.
    /// Returns the mapped memory of each PE, in the order of PE numbers. All PEs must call this
    /// function, and must be on one machine.
    pub(super) fn of_all(call: &'static str, rendezvous: &Rendezvous, bytes: usize) -> Result<Box<[Self]>, Error> {
        let members: Vec<Pe> = (0..rendezvous.n_pes()).map(Pe::new).collect();
        let own = file(bytes).map_err(|error| Error::setup(call, error))?;
        let files = rendezvous.exchange_descriptors(&members, own).map_err(|error| of_set_up(call, members.len(), error))?;
        let pages = files.into_iter().map(|file| Self::map(&file, bytes)).collect::<Result<_, _>>();
        pages.map_err(|error| Error::setup(call, error))
    }

    fn map(file: &OwnedFd, bytes: usize) -> io::Result<Self> {
        let size = rustix::fs::fstat(file)?.st_size;
        let is_sealed = rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
        if u64::try_from(size).ok() != Some(bytes as u64) || !is_sealed {
            let text = format!(
                "a PE shared a file of {size} bytes (sealed: {is_sealed}), expected {bytes} bytes and a seal against shrinking"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses an address for the new mapping, so it replaces no other
        // mapping.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file.as_fd(), 0) }?;
        Ok(Self { base: base.cast(), words: bytes / size_of::<u64>() })
    }

    /// Returns the 64-bit word at index `index`.
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "peerweave-cuda bug: word {index} does not exist, expected an index below {}", self.words);
        // SAFETY: the word is aligned and lies in the mapping, which lives as long as this value.
        // It is accessed only atomically. The file cannot shrink.
        unsafe { AtomicU64::from_ptr(self.base.add(index)) }
    }
}

impl Pages {
    /// Returns the [`SurvivorWords`] in this memory, by which the surviving PEs agree on a new job.
    /// They start at word `index`, which must be a multiple of 8.
    pub(super) fn survivors(&self, index: usize) -> &SurvivorWords {
        let end = index + size_of::<SurvivorWords>() / size_of::<u64>();
        assert!(
            index.is_multiple_of(8) && end <= self.words,
            "peerweave-cuda bug: words {index}..{end} are invalid, expected a start at a multiple of 8, and an end of at most {}",
            self.words
        );
        // SAFETY: the words lie in the mapping, which lives as long as this value and starts at a
        // page, so they are aligned to 64 bytes. They consist of atomics, for which zeros are
        // valid, and are only accessed as such. The file cannot shrink.
        unsafe { &*self.base.add(index).cast::<SurvivorWords>() }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `map` mapped the range, and references to its words do not outlive this value.
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.words * size_of::<u64>()) };
        debug_assert!(unmapped.is_ok());
    }
}
