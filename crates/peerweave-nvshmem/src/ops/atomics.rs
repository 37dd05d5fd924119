//! Atomic operations on another PE's words, as far as NVSHMEM's host library has them.
//!
//! It exports 150 typed atomics, and in every release from 3.3.24 to 3.8.0 each of them prints "not
//! implemented" and gives zero. What works are its signal operations, which set or add to a 64-bit
//! word: the operations here are made of those. Kernels have all of them.

use std::sync::Arc;

use peerweave_driver::CudaStream;
use peerweave_types::{AtomicInteger, Pe, SignalOp};

use crate::context::Context;
use crate::error::NvshmemError;
use crate::{Signal, SymmetricBuffer};

impl Context {
    /// Adds to the first element of `word` on another PE, atomically with other additions and
    /// signals, in the order of `stream`.
    ///
    /// # Errors
    /// [`NvshmemError::Unsupported`] for elements of 32 bits; as [`signal`](Self::signal).
    pub fn atomic_add<T: AtomicInteger>(
        &self,
        word: &SymmetricBuffer<T>,
        value: T,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        self.by_signal("nvshmem_TYPE_atomic_add", word, value, SignalOp::Add, pe, stream)
    }

    /// Adds one; see [`atomic_add`](Self::atomic_add).
    ///
    /// # Errors
    /// As [`atomic_add`](Self::atomic_add).
    pub fn atomic_inc<T: AtomicInteger>(
        &self,
        word: &SymmetricBuffer<T>,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        self.by_signal("nvshmem_TYPE_atomic_inc", word, T::from_word(1), SignalOp::Add, pe, stream)
    }

    /// Stores to the first element of `word` on another PE, atomically, in the order of `stream`.
    ///
    /// # Errors
    /// As [`atomic_add`](Self::atomic_add).
    pub fn atomic_set<T: AtomicInteger>(
        &self,
        word: &SymmetricBuffer<T>,
        value: T,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        self.by_signal("nvshmem_TYPE_atomic_set", word, value, SignalOp::Set, pe, stream)
    }

    fn by_signal<T: AtomicInteger>(
        &self,
        call: &'static str,
        word: &SymmetricBuffer<T>,
        value: T,
        op: SignalOp,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        if size_of::<T>() != size_of::<u64>() {
            return Err(self.comm.nvshmem.unsupported(call, None));
        }
        // Sums wrap alike, signed or not.
        let word = word.cast::<u64>()?;
        self.signal(&Signal { word: &word, value: value.to_word(), op }, pe, stream)
    }
}
