//! Signals, waits for signals, quiet and fence, in stream order or blocking.
//!
//! `wait_words.rs` has waits for words of other types. A wait on a stream has no deadline. If the
//! signal never arrives, the stream stays blocked. A wait of the host for that stream times out.

use std::ffi::c_int;
use std::sync::Arc;

use peerweave_driver::{CudaStream, DeviceBuffer};
use peerweave_types::nvshmem::{compare, signal_op};
use peerweave_types::{Compare, Element, Pe, SignalOp};

#[cfg(doc)]
use crate::MisuseKind;
use crate::SymmetricBuffer;
use crate::context::Context;
use crate::error::NvshmemError;
use crate::ops::enqueue::{Enqueue, check_apart, check_context, check_len, pointer};
use crate::ops::rma::one_at_least;

/// A signal: the update of one word in the memory of a PE. If a put sends the signal, the word is
/// updated after the data of the put has arrived.
#[derive(Clone, Debug)]
pub struct Signal<'a> {
    /// Buffer whose first element is the signal word.
    pub word: &'a SymmetricBuffer<u64>,
    /// The value to set or to add, as `op` specifies.
    pub value: u64,
    /// The operation on the word: set or add.
    pub op: SignalOp,
}

const NO_CAPTURE: &str = "the stream is being captured, and a graph cannot contain SignalOp::Set, because the value that NVSHMEM would read may be lost when the call returns; use SignalOp::Add";

impl Context {
    /// Writes `source` to `target` on the PE `pe` and then signals that PE, in stream order. When
    /// the PE observes the signal, the PE also observes the data.
    ///
    /// # Errors
    /// [`MisuseKind::Length`] if the signal's buffer is empty. [`MisuseKind::Overlap`] if the
    /// signal word overlaps the target. [`MisuseKind::Context`] for [`SignalOp::Set`] on a stream
    /// that is being captured. Other errors are the same as for [`put`](Self::put).
    pub fn put_signal<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &impl DeviceBuffer<T>,
        signal: &Signal<'_>,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_putmem_signal_on_stream";
        let comm = &self.comm;
        let mut enqueue = Enqueue::begin(comm, CALL, stream)?;
        if signal.op == SignalOp::Set {
            enqueue.not_captured(NO_CAPTURE)?;
        }
        let (remote, word, bytes, to) = self.check_put_signal(CALL, &mut enqueue, target, source.len(), signal, pe)?;
        if bytes == 0 {
            return self.signal(signal, pe, stream);
        }
        let access = enqueue.source("the source", source)?;
        let local = access.address();
        enqueue.reach(&self.heap, ("the source", local), ("the target", remote), bytes, pe)?;
        let (value, op) = (signal.value, signal_op(signal.op));
        // SAFETY: target and signal are inside the symmetric heap, and the source is inside its
        // buffer. All are kept alive until the stream has completed.
        enqueue.call(|api, _| unsafe {
            api.nvshmemx_putmem_signal_on_stream(
                pointer(remote),
                pointer(local),
                bytes,
                pointer(word),
                value,
                op,
                to,
                stream.cu_stream(),
            )
        })
    }

    /// Writes and signals like [`put_signal`](Self::put_signal), but the source may be overwritten
    /// only after a quiet.
    ///
    /// # Errors
    /// Returns the same errors as [`put_nbi`](Self::put_nbi) and [`put_signal`](Self::put_signal).
    pub fn put_signal_nbi<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        signal: &Signal<'_>,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_putmem_signal_nbi_on_stream";
        let comm = &self.comm;
        let mut enqueue = Enqueue::begin(comm, CALL, stream)?;
        enqueue.not_captured(
            "the stream is being captured, and a graph cannot contain this transfer, because NVSHMEM makes the transfer on its own streams",
        )?;
        let (remote, word, bytes, to) = self.check_put_signal(CALL, &mut enqueue, target, source.len(), signal, pe)?;
        if bytes == 0 {
            return self.signal(signal, pe, stream);
        }
        let local = enqueue.symmetric("the source", source)?;
        enqueue.reach(&self.heap, ("the source", local), ("the target", remote), bytes, pe)?;
        enqueue.starts_nbi(target, source);
        enqueue.starts_nbi_signal(signal.word);
        let (value, op) = (signal.value, signal_op(signal.op));
        // SAFETY: all ranges are inside the symmetric heap, whose memory is freed only after a
        // quiet.
        enqueue.call(|api, _| unsafe {
            api.nvshmemx_putmem_signal_nbi_on_stream(
                pointer(remote),
                pointer(local),
                bytes,
                pointer(word),
                value,
                op,
                to,
                stream.cu_stream(),
            )
        })
    }

    /// Checks the arguments of a put that also sends a signal. Returns the address of the target,
    /// the address of the signal word, the number of bytes, and the number of the PE.
    fn check_put_signal<T: Element>(
        &self,
        call: &'static str,
        enqueue: &mut Enqueue<'_>,
        target: &SymmetricBuffer<T>,
        source_len: usize,
        signal: &Signal<'_>,
        pe: Pe,
    ) -> Result<(u64, u64, usize, c_int), NvshmemError> {
        let to = self.comm.check_pe(call, "the PE", pe)?;
        check_len(call, "the source", source_len, target.len())?;
        one_at_least(call, "the signal", signal.word)?;
        let remote = enqueue.symmetric("the target", target)?;
        let word = enqueue.symmetric("the signal", signal.word)?;
        let bytes = target.len() * size_of::<T>();
        check_apart(call, ("the signal", word, size_of::<u64>()), ("the target", remote, bytes))?;
        Ok((remote, word, bytes, to))
    }

    /// Updates a word on the PE `pe`, in stream order. `signal` specifies the word and the update.
    /// The call sends no other data.
    ///
    /// # Errors
    /// [`MisuseKind::Pe`] if the job has no PE `pe`. [`MisuseKind::Length`] if the signal's buffer
    /// is empty. [`MisuseKind::WrongContext`] if this buffer belongs to another context.
    /// [`MisuseKind::Device`] if `stream` belongs to another device. [`MisuseKind::Context`] for
    /// [`SignalOp::Set`] on a stream that is being captured. [`NvshmemError::Dead`] if NVSHMEM is
    /// unusable.
    pub fn signal(&self, signal: &Signal<'_>, pe: Pe, stream: &Arc<CudaStream>) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_signal_op_on_stream";
        let mut enqueue = Enqueue::begin(&self.comm, CALL, stream)?;
        if signal.op == SignalOp::Set {
            enqueue.not_captured(NO_CAPTURE)?;
        }
        let to = self.comm.check_pe(CALL, "the PE", pe)?;
        one_at_least(CALL, "the signal", signal.word)?;
        let word = enqueue.symmetric("the signal", signal.word)?;
        let (value, op) = (signal.value, signal_op(signal.op));
        // SAFETY: the word is inside the symmetric heap, and its memory is kept alive.
        enqueue.call(|api, _| unsafe { api.nvshmemx_signal_op_on_stream(pointer(word), value, op, to, stream.cu_stream()) })
    }

    /// Makes `stream` wait until the first element of this PE's `word` satisfies the comparison
    /// `condition` with `value`. The numbers are compared as unsigned numbers.
    ///
    /// Usually a kernel on `stream` makes the comparison. On some devices, the stream itself makes
    /// the comparisons [`Compare::Eq`] and [`Compare::Ge`], without a kernel. The stream compares
    /// `Ge` cyclically: if the word is 2^63 or more above `value`, the wait may not end. If the
    /// word can have such a value (for example all bits set), use [`Compare::Gt`].
    ///
    /// A wait never ends too early. For [`wait_until`](Self::wait_until), a kernel always makes the
    /// comparison.
    ///
    /// # Errors
    /// Returns the same errors as [`signal`](Self::signal).
    pub fn signal_wait(
        &self,
        word: &SymmetricBuffer<u64>,
        condition: Compare,
        value: u64,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_signal_wait_until_on_stream";
        let mut enqueue = Enqueue::begin(&self.comm, CALL, stream)?;
        one_at_least(CALL, "the signal", word)?;
        let word = enqueue.symmetric("the signal", word)?;
        // Every word satisfies `Ge` with 0. With a large value, a small word would satisfy the
        // cyclic `Ge`, so `Gt` is used.
        let (condition, value) = match condition {
            Compare::Ge if value > i64::MAX as u64 => (Compare::Gt, value - 1),
            Compare::Ge if value == 0 => return Ok(()),
            other => (other, value),
        };
        // SAFETY: the word is inside the symmetric heap, and its memory is kept alive.
        enqueue.call(|api, _| unsafe {
            api.nvshmemx_signal_wait_until_on_stream(pointer(word), compare(condition), value, stream.cu_stream())
        })
    }

    /// Returns the current value of the first element of this PE's `word`. Copies the element to
    /// the host, and waits for the copy within the context's deadline.
    ///
    /// # Errors
    /// [`NvshmemError::Timeout`] if the copy is not complete by the deadline. Other errors are the
    /// same as for [`signal`](Self::signal).
    pub fn signal_fetch_blocking(&self, word: &SymmetricBuffer<u64>) -> Result<u64, NvshmemError> {
        const CALL: &str = "nvshmem_signal_fetch";
        one_at_least(CALL, "the signal", word)?;
        check_context(&self.comm, CALL, "the signal", word)?;
        // NVSHMEM's own function is not used, because that function would wait for the default
        // stream, and end the process on an error of CUDA. A copy also reads an aligned word
        // atomically.
        let values = word.slice(0..1)?.read_by(CALL, &self.comm.side)?;
        Ok(values[0])
    }

    /// Completes, in stream order, the puts and gets that this PE enqueued earlier on `stream`.
    /// Also makes `stream` wait for pending `nbi` transfers, which run on NVSHMEM's own streams.
    ///
    /// Exception: NVSHMEM treats an `nbi` transfer as complete once a quiet or barrier has made a
    /// stream wait for it. If that was a different stream, this call does not wait for the
    /// transfer.
    ///
    /// # Errors
    /// [`MisuseKind::Device`] if `stream` belongs to another device. [`NvshmemError::Dead`] if
    /// NVSHMEM is unusable. [`MisuseKind::Context`] if the stream is being captured while `nbi`
    /// transfers are pending.
    pub fn quiet(&self, stream: &Arc<CudaStream>) -> Result<(), NvshmemError> {
        let mut enqueue = Enqueue::begin(&self.comm, "nvshmemx_quiet_on_stream", stream)?;
        enqueue.waits_for_nbi()?;
        // SAFETY: NVSHMEM permits every stream of the device.
        enqueue.call(|api, _| unsafe { api.nvshmemx_quiet_on_stream(stream.cu_stream()) })
    }

    /// Completes the puts and gets that this PE made without a stream, and all transfers on
    /// NVSHMEM's own streams. Waits for completion within the context's deadline.
    ///
    /// # Errors
    /// [`NvshmemError::Timeout`] if the wait exceeds the deadline. [`NvshmemError::Dead`] if
    /// NVSHMEM is unusable.
    pub fn quiet_blocking(&self) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmem_quiet";
        self.comm.check_usable(CALL)?;
        self.comm.enqueued.pending.complete(CALL, &self.comm, || self.comm.quiet_host())?;
        self.comm.check_device_errors()
    }

    /// Orders the puts that this PE makes. Every PE observes first the puts made before this call,
    /// and then the puts made after this call. Waits for NVSHMEM within the context's deadline.
    ///
    /// # Errors
    /// Returns the same errors as [`quiet_blocking`](Self::quiet_blocking).
    pub fn fence_blocking(&self) -> Result<(), NvshmemError> {
        // SAFETY: NVSHMEM is initialised.
        self.comm.block("nvshmem_fence", |api, _| unsafe { api.nvshmem_fence() })
    }

    /// Makes later work on `stream` wait until the sources of earlier puts, including `nbi` puts,
    /// may be overwritten. A flush is weaker than a [`quiet`](Self::quiet), because the puts need
    /// not be complete. Requires NVSHMEM 3.8.
    ///
    /// # Errors
    /// [`NvshmemError::Unsupported`] if the library is older than NVSHMEM 3.8. Other errors are the
    /// same as for [`quiet`](Self::quiet).
    pub fn flush(&self, stream: &Arc<CudaStream>) -> Result<(), NvshmemError> {
        let mut enqueue = Enqueue::begin(&self.comm, "nvshmemx_flush_on_stream", stream)?;
        enqueue.waits_for_nbi()?;
        // SAFETY: NVSHMEM permits every stream of the device.
        enqueue.call(|api, _| unsafe { api.nvshmemx_flush_on_stream(stream.cu_stream()) })
    }

    /// Waits, within the context's deadline, until NVSHMEM has read the sources of the puts that
    /// this PE has made without a stream. After the call, these sources may be overwritten.
    /// Requires NVSHMEM 3.8.
    ///
    /// # Errors
    /// [`NvshmemError::Unsupported`] if the library is older than NVSHMEM 3.8. Other errors are the
    /// same as for [`quiet_blocking`](Self::quiet_blocking).
    pub fn flush_blocking(&self) -> Result<(), NvshmemError> {
        // SAFETY: NVSHMEM is initialised.
        self.comm.block("nvshmemx_flush", |api, _| unsafe { api.nvshmemx_flush() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_and_signal_codes_equal_those_of_nvshmem() {
        let numbers = Compare::ALL.map(compare);
        assert_eq!(numbers, [0, 1, 2, 5, 4, 3]);
        assert_eq!((signal_op(SignalOp::Set), signal_op(SignalOp::Add)), (9, 10));
    }
}
