//! Signal pads: arrays of words in symmetric memory, for signals. One PE changes a word, and
//! another PE waits until the word has changed.
//!
//! `peerweave-device` implements the operations of kernels on these words. Invariant: each signal
//! is in its own cache line.

use peerweave_driver::cudarc::driver::sys::CUdeviceptr;
use peerweave_types::{KernelContext, Pe, SignalWord, SymOffset};

use crate::error::{Misuse, VmmError};
use crate::heap::symmetric::{PeerMemory, SymmetricMemory};
use crate::memory::buffer::wrong_value;

/// An array of signals at the same offset in every PE's segment. All signals are initially zero.
#[derive(Debug)]
pub struct SignalPad {
    memory: SymmetricMemory<SignalWord>,
    len: usize,
}

impl SignalPad {
    /// Distance between two successive signals of a pad, in elements of type [`SignalWord`].
    pub const WORDS_PER_SIGNAL: usize = KernelContext::SIGNAL_LINE_BYTES as usize / size_of::<SignalWord>();

    pub(crate) fn new(memory: SymmetricMemory<SignalWord>, len: usize) -> Self {
        Self { memory, len }
    }

    /// Returns the number of signals.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the pad has no signals.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the offset of the first signal, which is the same in every segment.
    pub fn offset(&self) -> SymOffset {
        self.memory.offset()
    }

    /// Returns this PE's signal at `index`, as a buffer of one element.
    ///
    /// # Errors
    /// [`Misuse::OutOfRange`] if the pad has no signal at `index`.
    pub fn signal(&self, index: usize) -> Result<SymmetricMemory<SignalWord>, VmmError> {
        let word = self.word("SignalPad::signal", index)?;
        self.memory.slice(word..word + 1)
    }

    /// Returns the signal at `index` of PE `pe`, as a buffer of one element. `pe` may be this PE.
    ///
    /// # Errors
    /// [`Misuse::OutOfRange`] if the pad has no signal at `index`. [`Misuse::NotMapped`] if `pe` is
    /// on another machine or does not exist.
    pub fn signal_of(&self, pe: Pe, index: usize) -> Result<PeerMemory<SignalWord>, VmmError> {
        self.signal(index)?.peer(pe)
    }

    /// Returns the address that the signal at `index` of PE `pe` has in this process.
    ///
    /// # Errors
    /// The errors of [`signal_of`](Self::signal_of).
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
        index
            .checked_mul(Self::WORDS_PER_SIGNAL)
            .ok_or_else(|| wrong_value(call, "index", index, "the index of a signal in the pad"))
    }
}
