//! The recordings of an event that several processes use.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::abi::Result;
use crate::os::files;
use crate::os::mapping::{self, PAGE_BYTES};

/// The recordings of an interprocess event, in memory shared by all its processes.
#[derive(Clone)]
pub(crate) struct SharedEvent {
    words: Arc<Words>,
    pub(crate) device: usize,
}

/// Two counters: recordings begun, and recordings completed.
struct Words {
    file: OwnedFd,
    address: u64,
}

impl Drop for Words {
    fn drop(&mut self) {
        mapping::unmap(self.address, PAGE_BYTES);
    }
}

impl SharedEvent {
    pub(crate) fn create(device: usize) -> Result<SharedEvent> {
        SharedEvent::over(files::memory_file("event", PAGE_BYTES)?, device)
    }

    /// Creates an event over the counters in a file, which another process may have created.
    pub(crate) fn over(file: OwnedFd, device: usize) -> Result<SharedEvent> {
        let address = mapping::map(None, PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, Some((&file, 0)))?;
        Ok(SharedEvent { words: Arc::new(Words { file, address }), device })
    }

    /// Returns the number of the descriptor of the counters.
    pub(crate) fn descriptor(&self) -> i32 {
        self.words.file.as_raw_fd()
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the page is mapped for as long as `words` lives, and all processes use its words
        // as atomics only.
        unsafe { AtomicU64::from_ptr((self.words.address as *mut u64).add(index)) }
    }

    /// Begins a recording and returns its number.
    pub(crate) fn begin(&self) -> u64 {
        self.word(0).fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(crate) fn finish(&self, number: u64) {
        self.word(1).fetch_max(number, Ordering::AcqRel);
    }

    /// Returns the number of the latest recording; 0 means none.
    pub(crate) fn latest(&self) -> u64 {
        self.word(0).load(Ordering::Acquire)
    }

    pub(crate) fn is_done(&self, number: u64) -> bool {
        self.word(1).load(Ordering::Acquire) >= number
    }

    pub(crate) fn wait(&self, number: u64) {
        while !self.is_done(number) {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}
