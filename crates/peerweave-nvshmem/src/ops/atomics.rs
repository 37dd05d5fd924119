//! Atomic operations that the host makes on memory of another PE.
//!
//! NVSHMEM's host library exports 150 typed atomics. In every release from 3.3.24 to 3.8.0, these
//! atomics only print "not implemented" and return zero. The library's signal operations work: they
//! set a 64-bit word, or add a value to a 64-bit word. This module uses these signal operations.
//! Kernels can use all atomics.

use std::sync::Arc;

use peerweave_driver::CudaStream;
use peerweave_types::{AtomicInteger, Pe, SignalOp};

use crate::context::Context;
use crate::error::NvshmemError;
use crate::{Signal, SymmetricBuffer};

impl Context {
    /// Adds `value` to the first element of `word` on the PE `pe`, in stream order. The addition is
    /// atomic with respect to other additions and to signals.
    ///
    /// # Errors
    /// [`NvshmemError::Unsupported`] for 32-bit elements. Other errors are the same as for
    /// [`signal`](Self::signal).
    pub fn atomic_add<T: AtomicInteger>(
        &self,
        word: &SymmetricBuffer<T>,
        value: T,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        self.by_signal("nvshmem_TYPE_atomic_add", word, value, SignalOp::Add, pe, stream)
    }

    /// Adds one to the first element of `word` on the PE `pe`, like
    /// [`atomic_add`](Self::atomic_add).
    ///
    /// # Errors
    /// Returns the same errors as [`atomic_add`](Self::atomic_add).
    pub fn atomic_inc<T: AtomicInteger>(
        &self,
        word: &SymmetricBuffer<T>,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        self.by_signal("nvshmem_TYPE_atomic_inc", word, T::from_word(1), SignalOp::Add, pe, stream)
    }

    /// Atomically stores `value` in the first element of `word` on the PE `pe`, in stream order.
    ///
    /// # Errors
    /// Returns the same errors as [`atomic_add`](Self::atomic_add).
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
        // The word is added as an unsigned number, because addition wraps equally for signed and
        // unsigned integers.
        let word = word.cast::<u64>()?;
        self.signal(&Signal { word: &word, value: value.to_word(), op }, pe, stream)
    }
}
