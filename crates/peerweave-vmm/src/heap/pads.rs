//! Signal pads: words in symmetric memory that one PE sets and another waits for, each in its own
//! cache line.
//!
//! `peerweave-device` has the kernels' operations on them. Invariant: no two signals share a cache
//! line.

use peerweave_driver::cudarc::driver::sys::CUdeviceptr;
use peerweave_types::{KernelContext, Pe, SignalWord, SymOffset};

use crate::error::{Misuse, VmmError};
use crate::heap::symmetric::{PeerMemory, SymmetricMemory};
use crate::memory::buffer::wrong_value;

/// `len` signals at the same offset of every PE's segment, initially zero.
#[derive(Debug)]
pub struct SignalPad {
    memory: SymmetricMemory<SignalWord>,
    len: usize,
}

impl SignalPad {
    /// Distance between two signals, in words.
    pub const WORDS_PER_SIGNAL: usize = KernelContext::SIGNAL_LINE_BYTES as usize / size_of::<SignalWord>();

    pub(crate) fn new(memory: SymmetricMemory<SignalWord>, len: usize) -> Self {
        Self { memory, len }
    }

    /// Returns the number of signals.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no signals.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the offset of the first signal in every segment.
    pub fn offset(&self) -> SymOffset {
        self.memory.offset()
    }

    /// Returns one signal of this PE, as a buffer of one element.
    ///
    /// # Errors
    /// [`Misuse::OutOfRange`].
    pub fn signal(&self, index: usize) -> Result<SymmetricMemory<SignalWord>, VmmError> {
        let word = self.word("SignalPad::signal", index)?;
        self.memory.slice(word..word + 1)
    }

    /// Returns one signal of another PE, as a buffer of one element.
    ///
    /// # Errors
    /// [`Misuse::OutOfRange`], [`Misuse::NotMapped`].
    pub fn signal_of(&self, pe: Pe, index: usize) -> Result<PeerMemory<SignalWord>, VmmError> {
        self.signal(index)?.peer(pe)
    }

    /// Returns the address in this process of a signal of a PE.
    ///
    /// # Errors
    /// As for [`signal_of`](Self::signal_of).
    pub fn address_of(&self, pe: Pe, index: usize) -> Result<CUdeviceptr, VmmError> {
        Ok(self.signal_of(pe, index)?.address())
    }

    pub(crate) fn into_memory(self) -> SymmetricMemory<SignalWord> {
        self.memory
    }

    fn word(&self, call: &'static str, index: usize) -> Result<usize, VmmError> {
        if index >= self.len {
            return Err(
                Misuse::OutOfRange { call, start: index, end: index.saturating_add(1), len: self.len, unit: "signals" }.into()
            );
        }
        index.checked_mul(Self::WORDS_PER_SIGNAL).ok_or_else(|| wrong_value(call, "index", index, "a signal of the pad"))
    }
}
