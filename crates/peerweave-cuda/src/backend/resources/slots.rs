//! Slots: words in pinned memory to which kernels of this backend write their outcome.
//!
//! Invariant: an operation in flight owns its slots, and the pool reuses a slot only after its
//! owner has dropped the slot. So a kernel never writes to a slot that already belongs to a later
//! operation.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

use peerweave_driver::launch::MappedWords;
use peerweave_driver::{CudaContext, CudaStream, DriverError};
use peerweave_types::DeviceSlice;

use crate::backend::lock::lock;

/// Number of 64-bit words in each slot of the pool.
const SLOT_WORDS: usize = 16;
/// Number of slots that the pool allocates together.
const CHUNK: usize = 64;

/// The pool of free slots. A slot is a few words of pinned memory in which kernels store their
/// outcome.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: Mutex<Vec<(MappedWords, usize)>>,
}

/// The words in pinned memory to which the kernels of one operation write their outcome.
#[derive(Debug)]
pub(crate) struct Slot {
    words: MappedWords,
    /// Index of the slot's first word in `words`, counted in 32-bit words.
    first: usize,
    /// Length of the slot in 64-bit words.
    len: usize,
    /// The pool to which the words return when the slot is dropped. `None` if the words do not
    /// belong to a pool, but are freed with the slot.
    home: Option<Weak<Pool>>,
}

impl Pool {
    /// Returns a free slot of at least `len` 64-bit words, and sets the words to zero. Allocates
    /// memory if no slot is free.
    pub(crate) fn take(self: &Arc<Self>, context: &Arc<CudaContext>, len: usize) -> Result<Slot, DriverError> {
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
    /// Returns the 64-bit word at `index`.
    pub(crate) fn get(&self, index: usize) -> u64 {
        let half = |at: usize| u64::from(self.words.word(self.first + 2 * index + at).load(Ordering::Acquire));
        half(0) | half(1) << 32
    }

    /// Sets the 64-bit word at `index`. No kernel may use the slot during the call.
    pub(crate) fn set(&self, index: usize, value: u64) {
        let half = |at: usize, value: u64| self.words.word(self.first + 2 * index + at).store(value as u32, Ordering::Release);
        half(0, value);
        half(1, value >> 32);
    }

    /// Returns the device address of the 64-bit word at `index`.
    pub(crate) fn address(&self, index: usize) -> u64 {
        self.words.device_address(self.first + 2 * index)
    }

    /// Returns a view of `len` 64-bit words from index `first`, to be passed to a kernel.
    pub(crate) fn view(&self, first: usize, len: usize) -> DeviceSlice<u64> {
        assert!(
            first + len <= self.len,
            "peerweave-cuda bug: words {first}..{} do not exist in a slot of {} words",
            first + len,
            self.len
        );
        // SAFETY: the words lie in pinned memory that the device can access. The code that enqueues
        // a kernel with the view owns the slot until the kernel has ended.
        unsafe { DeviceSlice::from_raw(self.address(first), len) }
    }

    /// Records that work of the caller on `stream` uses the slot. The words then stay allocated
    /// until the stream has completed that work.
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
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
