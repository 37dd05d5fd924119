//! Words in pinned memory that kernels of this backend write their outcome to.
//!
//! Invariant: a slot is given to another operation when it was dropped, and what is in flight owns
//! it, so no kernel writes to a slot of a later operation.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

use peerweave_driver::launch::MappedWords;
use peerweave_driver::{CudaContext, CudaStream, DriverError};
use peerweave_types::DeviceSlice;

use super::state::lock;

/// Words of 64 bits of a slot of the pool.
const SLOT_WORDS: usize = 16;
/// Slots that are allocated at once.
const CHUNK: usize = 64;

/// The slots that are free.
#[derive(Debug, Default)]
pub(super) struct Pool {
    free: Mutex<Vec<(MappedWords, usize)>>,
}

/// The words of one operation.
#[derive(Debug)]
pub(super) struct Slot {
    words: MappedWords,
    /// The first of its words of 32 bits.
    first: usize,
    /// In words of 64 bits.
    len: usize,
    /// `None` for words that are freed with the slot.
    home: Option<Weak<Pool>>,
}

impl Pool {
    /// A slot of at least `len` words of 64 bits, all zero.
    pub(super) fn take(self: &Arc<Self>, context: &Arc<CudaContext>, len: usize) -> Result<Slot, DriverError> {
        let slot = if len > SLOT_WORDS {
            Slot { words: MappedWords::new(context, 2 * len)?, first: 0, len, home: None }
        } else {
            let taken = lock(&self.free).pop();
            let (words, first) = match taken {
                Some(taken) => taken,
                None => {
                    let words = MappedWords::new(context, 2 * SLOT_WORDS * CHUNK)?;
                    lock(&self.free).extend((1..CHUNK).map(|slot| (words.clone(), slot * 2 * SLOT_WORDS)));
                    (words, 0)
                }
            };
            Slot { words, first, len: SLOT_WORDS, home: Some(Arc::downgrade(self)) }
        };
        (0..slot.len).for_each(|index| slot.set(index, 0));
        Ok(slot)
    }
}

impl Slot {
    /// The word at an index.
    pub(super) fn get(&self, index: usize) -> u64 {
        let half = |at: usize| u64::from(self.words.word(self.first + 2 * index + at).load(Ordering::Acquire));
        half(0) | half(1) << 32
    }

    /// Sets the word at an index. No kernel uses the slot.
    pub(super) fn set(&self, index: usize, value: u64) {
        let half = |at: usize, value: u64| self.words.word(self.first + 2 * index + at).store(value as u32, Ordering::Release);
        half(0, value);
        half(1, value >> 32);
    }

    /// The address of the word at an index, for the device.
    pub(super) fn address(&self, index: usize) -> u64 {
        self.words.device_address(self.first + 2 * index)
    }

    /// The words from an index on, for kernels.
    pub(super) fn view(&self, first: usize, len: usize) -> DeviceSlice<u64> {
        assert!(first + len <= self.len, "peerweave-cuda bug: words {first}..{} of a slot of {}", first + len, self.len);
        // SAFETY: the words lie in pinned memory that the device reaches. What enqueues a kernel
        // with the view owns the slot until the kernel has ended.
        unsafe { DeviceSlice::from_raw(self.address(first), len) }
    }

    /// Notes that work which uses the slot is about to be enqueued.
    pub(super) fn note(&self, stream: &Arc<CudaStream>) {
        self.words.note(stream);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(pool) = self.home.take().and_then(|home| home.upgrade()) {
            lock(&pool.free).push((self.words.clone(), self.first));
        }
    }
}
