//! Signals on a stream and waiting for them; what is complete and what is ordered.
//!
//! Waiting for words of other types is `words.rs`.
//!
//! A wait on a stream has no deadline of its own: what never comes keeps the stream, and the host's
//! waits for that stream expire.

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

/// What a put does to a word on the other PE once its data is there.
#[derive(Clone, Debug)]
pub struct Signal<'a> {
    /// The word: the first element.
    pub word: &'a SymmetricBuffer<u64>,
    /// What it is set to, or what is added.
    pub value: u64,
    /// Which of both.
    pub op: SignalOp,
}

const NO_CAPTURE: &str = "the stream is being captured, and NVSHMEM may store the value of a set signal from memory that does not outlive the call: add instead";

impl Context {
    /// Writes `source` to `target` on another PE, then signals there: who sees the signal sees the
    /// data. In the order of `stream`.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`MisuseKind::Length`] for a signal without a word;
    /// [`MisuseKind::Context`] for a set signal on a stream that is being captured.
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
        let (remote, word, bytes, to) = self.signalled(CALL, &mut enqueue, target, source.len(), signal, pe)?;
        if bytes == 0 {
            return self.signal(signal, pe, stream);
        }
        let access = enqueue.source("the source", source)?;
        let local = access.address();
        enqueue.reach(&self.heap, ("the source", local), ("the target", remote), bytes, pe)?;
        let (value, op) = (signal.value, signal_op(signal.op));
        // SAFETY: target and signal are inside the symmetric heap, the source inside its buffer;
        // all are kept until the stream has passed.
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

    /// As [`put_signal`](Self::put_signal), but complete on this side only after a quiet.
    ///
    /// # Errors
    /// As [`put_nbi`](Self::put_nbi) and [`put_signal`](Self::put_signal).
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
        enqueue.not_captured("the stream is being captured, and NVSHMEM does this on streams of its own")?;
        let (remote, word, bytes, to) = self.signalled(CALL, &mut enqueue, target, source.len(), signal, pe)?;
        if bytes == 0 {
            return self.signal(signal, pe, stream);
        }
        let local = enqueue.symmetric("the source", source)?;
        enqueue.reach(&self.heap, ("the source", local), ("the target", remote), bytes, pe)?;
        enqueue.leaves(target, source);
        enqueue.leaves_signal(signal.word);
        let (value, op) = (signal.value, signal_op(signal.op));
        // SAFETY: all ranges are inside the symmetric heap, whose memory is freed after a quiet.
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

    /// What puts with a signal check of target and signal. Gives their addresses, the bytes and the
    /// PE.
    fn signalled<T: Element>(
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

    /// Signals to another PE without data, in the order of `stream`.
    ///
    /// # Errors
    /// [`MisuseKind::Pe`], [`MisuseKind::Length`], [`MisuseKind::WrongContext`],
    /// [`MisuseKind::Device`]; [`MisuseKind::Context`] for a set signal on a stream that is being
    /// captured; [`NvshmemError::Dead`].
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
        // SAFETY: the word is inside the symmetric heap and kept.
        enqueue.call(|api, _| unsafe { api.nvshmemx_signal_op_on_stream(pointer(word), value, op, to, stream.cu_stream()) })
    }

    /// Has `stream` wait until this PE's word compares so with `value`. The comparison is of
    /// unsigned numbers.
    ///
    /// Where the device's streams can wait by themselves, NVSHMEM has them wait for [`Compare::Eq`]
    /// and [`Compare::Ge`], and such a stream compares for `Ge` in the cycle of all numbers: a word
    /// that is 2^63 or more above `value` may not be taken for one that is reached. It never goes
    /// on too early. For words as far away as that (as one with all bits set), use [`Compare::Gt`].
    /// Other comparisons are a kernel's, as all of [`wait_until`](Self::wait_until) are.
    ///
    /// # Errors
    /// As [`signal`](Self::signal).
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
        // In the cycle, what is small is above what is so large; and none is below zero.
        let (condition, value) = match condition {
            Compare::Ge if value > i64::MAX as u64 => (Compare::Gt, value - 1),
            Compare::Ge if value == 0 => return Ok(()),
            other => (other, value),
        };
        // SAFETY: the word is inside the symmetric heap and kept.
        enqueue.call(|api, _| unsafe {
            api.nvshmemx_signal_wait_until_on_stream(pointer(word), compare(condition), value, stream.cu_stream())
        })
    }

    /// The value of this PE's word now. Blocks for a copy from the device, at most for the
    /// context's deadline.
    ///
    /// # Errors
    /// [`NvshmemError::Timeout`]; as [`signal`](Self::signal).
    pub fn signal_fetch_blocking(&self, word: &SymmetricBuffer<u64>) -> Result<u64, NvshmemError> {
        const CALL: &str = "nvshmem_signal_fetch";
        one_at_least(CALL, "the signal", word)?;
        check_context(&self.comm, CALL, "the signal", word)?;
        // NVSHMEM's own would wait for the default stream, and end the process where CUDA says no:
        // an aligned word is read whole by a copy too.
        let values = word.slice(0..1)?.read_by(CALL, &self.comm.side)?;
        Ok(values[0])
    }

    /// Completes, in the order of `stream`: what this PE put or got before in that order, and what
    /// was left to NVSHMEM's own streams (`nbi`) and not yet completed by a quiet or a barrier on
    /// another stream.
    ///
    /// # Errors
    /// [`MisuseKind::Device`], [`NvshmemError::Dead`]; [`MisuseKind::Context`] on a stream that is
    /// being captured while `nbi` transfers are under way.
    pub fn quiet(&self, stream: &Arc<CudaStream>) -> Result<(), NvshmemError> {
        let mut enqueue = Enqueue::begin(&self.comm, "nvshmemx_quiet_on_stream", stream)?;
        enqueue.takes_over()?;
        // SAFETY: any stream of the device is allowed.
        enqueue.call(|api, _| unsafe { api.nvshmemx_quiet_on_stream(stream.cu_stream()) })
    }

    /// Completes what was put and got without a stream, and what was left to NVSHMEM's own streams,
    /// also where a quiet or a barrier on a stream has yet to complete it. Blocks, at most for the
    /// context's deadline.
    ///
    /// # Errors
    /// [`NvshmemError::Timeout`], [`NvshmemError::Dead`].
    pub fn quiet_blocking(&self) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmem_quiet";
        self.comm.alive(CALL)?;
        self.comm.enqueued.pending.complete(CALL, &self.comm, || self.comm.quiet_of_host())?;
        self.comm.healthy()
    }

    /// Orders: what was put before is seen by each PE before what is put later. Blocks, at most for
    /// the context's deadline.
    ///
    /// # Errors
    /// [`NvshmemError::Timeout`], [`NvshmemError::Dead`].
    pub fn fence_blocking(&self) -> Result<(), NvshmemError> {
        // SAFETY: NVSHMEM is initialised.
        self.comm.block("nvshmem_fence", |api, _| unsafe { api.nvshmem_fence() })
    }

    /// In the order of `stream`: the sources of what was put before, also of `nbi` puts, may be
    /// reused. Weaker than [`quiet`](Self::quiet). Since 3.8.
    ///
    /// # Errors
    /// [`NvshmemError::Unsupported`]; as [`quiet`](Self::quiet).
    pub fn flush(&self, stream: &Arc<CudaStream>) -> Result<(), NvshmemError> {
        let mut enqueue = Enqueue::begin(&self.comm, "nvshmemx_flush_on_stream", stream)?;
        enqueue.takes_over()?;
        // SAFETY: any stream of the device is allowed.
        enqueue.call(|api, _| unsafe { api.nvshmemx_flush_on_stream(stream.cu_stream()) })
    }

    /// As [`flush`](Self::flush), for what was put without a stream. Blocks, at most for the
    /// context's deadline. Since 3.8.
    ///
    /// # Errors
    /// [`NvshmemError::Unsupported`]; as [`quiet_blocking`](Self::quiet_blocking).
    pub fn flush_blocking(&self) -> Result<(), NvshmemError> {
        // SAFETY: NVSHMEM is initialised.
        self.comm.block("nvshmemx_flush", |api, _| unsafe { api.nvshmemx_flush() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_have_nvshmem_s_numbers() {
        let numbers = Compare::ALL.map(compare);
        assert_eq!(numbers, [0, 1, 2, 5, 4, 3]);
        assert_eq!((signal_op(SignalOp::Set), signal_op(SignalOp::Add)), (9, 10));
    }
}
