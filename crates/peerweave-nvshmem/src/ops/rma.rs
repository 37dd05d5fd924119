//! Puts and gets on a stream, complete in its order or at quiet; strided; single values.
//!
//! Puts with a signal are `signal.rs`, what the host waits for `rma_blocking.rs`.
//!
//! A put or get on a stream is complete in the stream's order on this side: its source may be
//! reused, its target read, by later work of that stream. The other PE sees a put after a quiet or
//! a barrier, or by a signal that came with it.

use std::ffi::c_int;
use std::sync::Arc;

use peerweave_driver::cudarc::driver::sys::CUstream;
use peerweave_driver::{CudaStream, DeviceBuffer, DeviceBufferMut};
use peerweave_dylib::MissingSymbol;
use peerweave_types::{Element, Pe, Strides};

use crate::context::Context;
use crate::error::{MisuseKind, NvshmemError};
use crate::ops::enqueue::{Enqueue, by_width, check_apart, check_context, check_len, pointer};
use crate::sys::{CType, Families};
use crate::{SymmetricBuffer, sys};

/// What a strided transfer touches.
fn span(call: &'static str, what: &'static str, stride: usize, count: usize, len: usize) -> Result<(), NvshmemError> {
    if stride == 0 {
        return Err(NvshmemError::misuse(call, MisuseKind::Value { what, found: 0, expected: "a stride of at least 1" }));
    }
    let end = count.checked_sub(1).map_or(Some(0), |last| last.checked_mul(stride)?.checked_add(1));
    match end {
        Some(end) if end <= len => Ok(()),
        _ => {
            let end = end.unwrap_or(usize::MAX);
            Err(NvshmemError::misuse(call, MisuseKind::OutOfRange { what, start: 0, end, len }))
        }
    }
}

const NO_CAPTURE: &str =
    "the stream is being captured, and NVSHMEM does this on streams of its own, or with a value that does not outlive the call";

impl Context {
    /// Writes `source` to `target` on another PE, in the order of `stream`.
    ///
    /// `source` is any memory of this device; for a PE that is reached by the network it must be
    /// symmetric or [registered](Self::register_local).
    ///
    /// # Errors
    /// [`MisuseKind::Length`] unless both have the same number of elements; [`MisuseKind::Pe`],
    /// [`MisuseKind::Device`], [`MisuseKind::WrongContext`], [`MisuseKind::Unregistered`],
    /// [`MisuseKind::Overlap`] (on this PE itself); [`NvshmemError::Dead`].
    pub fn put<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &impl DeviceBuffer<T>,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_putmem_on_stream";
        let comm = &self.comm;
        let mut enqueue = Enqueue::begin(comm, CALL, stream)?;
        let to = comm.check_pe(CALL, "the PE", pe)?;
        check_len(CALL, "the source", source.len(), target.len())?;
        let remote = enqueue.symmetric("the target", target)?;
        let bytes = target.len() * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        let access = enqueue.source("the source", source)?;
        let local = access.address();
        enqueue.reach(&self.heap, ("the source", local), ("the target", remote), bytes, pe)?;
        // SAFETY: the remote range is inside the symmetric heap, the local one inside its buffer;
        // both are kept until the stream has passed.
        enqueue.call(|api, _| unsafe {
            api.nvshmemx_putmem_on_stream(pointer(remote), pointer(local), bytes, to, stream.cu_stream())
        })
    }

    /// As [`put`](Self::put), but complete only after a quiet: until then the source must not be
    /// written. It may overtake other work of the stream.
    ///
    /// NVSHMEM's own streams wait for what `stream` has before, and its blocking calls for them:
    /// with a stream that is kept for longer than the deadline, a blocking call after this one is
    /// the end of the context.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`MisuseKind::Context`] on a stream that is being captured.
    pub fn put_nbi<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_putmem_nbi_on_stream";
        self.nbi(CALL, ("the target", target), ("the source", source), pe, stream, |api, remote, local, bytes, to, stream| {
            // SAFETY: both ranges are inside the symmetric heap, whose memory is freed after a
            // quiet.
            unsafe { api.nvshmemx_putmem_nbi_on_stream(remote, local, bytes, to, stream) }
        })
    }

    /// Reads `source` of another PE into `target`, in the order of `stream`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn get<T: Element>(
        &self,
        target: &mut impl DeviceBufferMut<T>,
        source: &SymmetricBuffer<T>,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_getmem_on_stream";
        let comm = &self.comm;
        let mut enqueue = Enqueue::begin(comm, CALL, stream)?;
        let from = comm.check_pe(CALL, "the PE", pe)?;
        check_len(CALL, "the target", target.len(), source.len())?;
        let remote = enqueue.symmetric("the source", source)?;
        let bytes = source.len() * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        let access = enqueue.target("the target", target)?;
        let local = access.address();
        enqueue.reach(&self.heap, ("the target", local), ("the source", remote), bytes, pe)?;
        // SAFETY: the remote range is inside the symmetric heap, the local one inside its buffer;
        // both are kept until the stream has passed.
        enqueue.call(|api, _| unsafe {
            api.nvshmemx_getmem_on_stream(pointer(local), pointer(remote), bytes, from, stream.cu_stream())
        })
    }

    /// As [`get`](Self::get), but complete only after a quiet: until then the target must not be
    /// used.
    ///
    /// # Errors
    /// As [`put_nbi`](Self::put_nbi).
    pub fn get_nbi<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_getmem_nbi_on_stream";
        self.nbi(CALL, ("the source", source), ("the target", target), pe, stream, |api, remote, local, bytes, from, stream| {
            // SAFETY: both ranges are inside the symmetric heap, whose memory is freed after a
            // quiet.
            unsafe { api.nvshmemx_getmem_nbi_on_stream(local, remote, bytes, from, stream) }
        })
    }

    fn nbi<T: Element>(
        &self,
        call: &'static str,
        (remote_name, remote): (&'static str, &SymmetricBuffer<T>),
        (local_name, local): (&'static str, &SymmetricBuffer<T>),
        pe: Pe,
        stream: &Arc<CudaStream>,
        function: impl FnOnce(
            &'static sys::Api,
            *mut std::ffi::c_void,
            *mut std::ffi::c_void,
            usize,
            c_int,
            CUstream,
        ) -> Result<(), MissingSymbol>,
    ) -> Result<(), NvshmemError> {
        let mut enqueue = Enqueue::begin(&self.comm, call, stream)?;
        enqueue.not_captured(NO_CAPTURE)?;
        let to = self.comm.check_pe(call, "the PE", pe)?;
        check_len(call, local_name, local.len(), remote.len())?;
        let there = enqueue.symmetric(remote_name, remote)?;
        let here = enqueue.symmetric(local_name, local)?;
        let bytes = remote.len() * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        enqueue.reach(&self.heap, (local_name, here), (remote_name, there), bytes, pe)?;
        enqueue.leaves(remote, local);
        enqueue.call(|api, _| function(api, pointer(there), pointer(here), bytes, to, stream.cu_stream()))
    }

    /// Writes elements of `source` to `target` on another PE, with steps between them, in the order
    /// of `stream`. NVSHMEM has it for PEs that are reached without the network.
    ///
    /// # Errors
    /// [`MisuseKind::OutOfRange`] where the last element is outside; [`MisuseKind::Unregistered`]
    /// for a PE that only the network reaches. As [`put`](Self::put) otherwise.
    pub fn put_strided<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        strides: Strides,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_iput_on_stream";
        self.strided(CALL, target, source, strides, ("the target", target, pe), stream, |families, kind| {
            families.iput_on_stream(kind)
        })
    }

    /// Reads elements of `source` of another PE into `target`, with steps between them, in the
    /// order of `stream`.
    ///
    /// # Errors
    /// As [`put_strided`](Self::put_strided).
    pub fn get_strided<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        strides: Strides,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_iget_on_stream";
        self.strided(CALL, target, source, strides, ("the source", source, pe), stream, |families, kind| {
            families.iget_on_stream(kind)
        })
    }

    #[allow(clippy::too_many_arguments, reason = "what both directions have in common")]
    fn strided<T: Element>(
        &self,
        call: &'static str,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        strides: Strides,
        (remote_name, remote, pe): (&'static str, &SymmetricBuffer<T>, Pe),
        stream: &Arc<CudaStream>,
        function: impl FnOnce(&'static Families, CType) -> Result<sys::StridedOnStream, MissingSymbol>,
    ) -> Result<(), NvshmemError> {
        let mut enqueue = Enqueue::begin(&self.comm, call, stream)?;
        let (other, strides) = self.check_strided(call, target, source, strides, (remote_name, remote, pe))?;
        let to = enqueue.symmetric("the target", target)?;
        let from = enqueue.symmetric("the source", source)?;
        if strides.count == 0 {
            return Ok(());
        }
        enqueue.call(|_, families| {
            let function = function(families, by_width::<T>())?;
            let (target_stride, source_stride) = (strides.dest as isize, strides.source as isize);
            // SAFETY: every element is inside the symmetric heap on both sides, and kept until the
            // stream has passed.
            unsafe {
                function(pointer(to), pointer(from), target_stride, source_stride, strides.count, other, stream.cu_stream())
            };
            Ok(())
        })
    }

    /// Every element is inside, both sides are mapped here, and on this PE itself they are apart.
    /// Gives the PE, and the steps that NVSHMEM is to be given.
    pub(crate) fn check_strided<T: Element>(
        &self,
        call: &'static str,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        strides: Strides,
        (remote_name, remote, pe): (&'static str, &SymmetricBuffer<T>, Pe),
    ) -> Result<(c_int, Strides), NvshmemError> {
        let other = self.comm.check_pe(call, "the PE", pe)?;
        check_context(&self.comm, call, "the target", target)?;
        check_context(&self.comm, call, "the source", source)?;
        span(call, "the target", strides.dest, strides.count, target.len())?;
        span(call, "the source", strides.source, strides.count, source.len())?;
        if strides.count == 0 {
            return Ok((other, strides));
        }
        // From one element there is no step; a wide one would be too wide for CUDA all the same.
        let strides = if strides.count == 1 { Strides { count: 1, source: 1, dest: 1 } } else { strides };
        for (what, stride) in [("the target's stride", strides.dest), ("the source's stride", strides.source)] {
            // The widest pitch of a copy of CUDA's; NVSHMEM would end the process.
            if stride.saturating_mul(size_of::<T>()) > i32::MAX as usize {
                let found = i64::try_from(stride).unwrap_or(i64::MAX);
                return Err(NvshmemError::misuse(call, MisuseKind::Value { what, found, expected: "less than 2 GiB" }));
            }
        }
        if !self.heap.mapped(remote.address())?[pe.index()] {
            // NVSHMEM prints that it is not implemented, and ends the process.
            return Err(NvshmemError::misuse(call, MisuseKind::Unregistered { what: remote_name, pe }));
        }
        if pe == self.comm.pe {
            let bytes = |stride: usize| ((strides.count - 1) * stride + 1) * size_of::<T>();
            let (from, to) = (source.address(), target.address());
            check_apart(call, ("the source", from, bytes(strides.source)), ("the target", to, bytes(strides.dest)))?;
        }
        Ok((other, strides))
    }

    /// Writes one value to the first element of `target` on another PE, in the order of `stream`.
    ///
    /// # Errors
    /// [`MisuseKind::Length`] unless the target has an element; [`MisuseKind::Context`] on a stream
    /// that is being captured. As [`put`](Self::put) otherwise.
    pub fn put_value<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        value: T,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_p_on_stream";
        let mut enqueue = Enqueue::begin(&self.comm, CALL, stream)?;
        enqueue.not_captured(NO_CAPTURE)?;
        let to = self.comm.check_pe(CALL, "the PE", pe)?;
        one_at_least(CALL, "the target", target)?;
        let remote = enqueue.symmetric("the target", target)?;
        let stream = stream.cu_stream();
        enqueue.call(|_, families| {
            let function = families.p_on_stream(by_width::<T>())?;
            macro_rules! call {
                ($bits:ty) => {{
                    // SAFETY: the address is that of the function for integers of this width.
                    let function = unsafe {
                        std::mem::transmute::<sys::ByValue, unsafe extern "C" fn(*mut $bits, $bits, c_int, CUstream)>(function)
                    };
                    // SAFETY: elements are as many plain bytes as the integer; the address is
                    // inside the symmetric heap and kept.
                    unsafe { function(pointer(remote), std::mem::transmute_copy::<T, $bits>(&value), to, stream) }
                }};
            }
            match size_of::<T>() {
                1 => call!(u8),
                2 => call!(u16),
                4 => call!(u32),
                _ => call!(u64),
            }
            Ok(())
        })
    }
}

pub(crate) fn one_at_least<T>(call: &'static str, what: &'static str, buffer: &SymmetricBuffer<T>) -> Result<(), NvshmemError> {
    if buffer.is_empty() {
        return Err(NvshmemError::misuse(call, MisuseKind::Length { what, found: 0, expected: 1, unit: "elements" }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strided_ranges_are_judged_by_their_last_element() {
        assert!(span("test", "the target", 3, 4, 10).is_ok());
        let error = span("test", "the target", 3, 4, 9).expect_err("the last is outside");
        assert_eq!(error.to_string(), "test: the target is 0..10 of 9 elements");
        assert!(span("test", "the target", 3, 0, 0).is_ok());
        assert!(span("test", "the target", 0, 1, 1).is_err());
        assert!(span("test", "the target", usize::MAX, 3, 9).is_err(), "no overflow");
    }
}
