//! Puts and gets on a stream: in stream order or non-blocking, strided, and of single values.
//!
//! `signal.rs` has puts with a signal, and `rma_blocking.rs` has the puts and gets for which the
//! host waits.
//!
//! A put or get on a stream is locally complete in stream order. Later work of the stream may
//! therefore overwrite the source of the put, or read the target of the get. A put is visible to
//! the other PE after a quiet, a barrier, or a signal sent with the put.

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

/// Checks that a buffer of `len` elements has room for `count` elements at the indices 0, `stride`,
/// 2 * `stride`, and so on.
fn span(call: &'static str, what: &'static str, stride: usize, count: usize, len: usize) -> Result<(), NvshmemError> {
    if stride == 0 {
        let what = if what == "the target" { "the target's stride" } else { "the source's stride" };
        return Err(NvshmemError::misuse(call, MisuseKind::Value { what, found: 0, expected: "at least 1" }));
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

const NO_CAPTURE: &str = "the stream is being captured, and a graph cannot contain this transfer, because NVSHMEM makes the transfer on its own streams";

impl Context {
    /// Writes `source` to `target` on the PE `pe`, in stream order.
    ///
    /// `source` may be any memory on this device. If `pe` is reached only over the network,
    /// `source` must be symmetric or [registered](Self::register_local).
    ///
    /// # Errors
    /// [`MisuseKind::Length`] unless source and target have the same number of elements.
    /// [`MisuseKind::Pe`] if the job has no PE `pe`. [`MisuseKind::Device`] if this PE's memory or
    /// `stream` belongs to another device. [`MisuseKind::WrongContext`] if symmetric memory belongs
    /// to another context. [`MisuseKind::Unregistered`] if `pe` is reached only over the network,
    /// and this PE's memory is neither symmetric nor registered. [`MisuseKind::Overlap`] if `pe` is
    /// this PE, and source and target overlap. [`NvshmemError::Dead`] if NVSHMEM is unusable.
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
        // SAFETY: the remote range is inside the symmetric heap, and the local range is inside its
        // buffer. Both are kept alive until the stream has completed.
        enqueue.call(|api, _| unsafe {
            api.nvshmemx_putmem_on_stream(pointer(remote), pointer(local), bytes, to, stream.cu_stream())
        })
    }

    /// Writes like [`put`](Self::put), but the put is complete only after a quiet. The source must
    /// not be overwritten before the quiet is complete. Later work on `stream` does not wait for
    /// the put.
    ///
    /// The transfer runs on one of NVSHMEM's own streams, after the earlier work on `stream`.
    /// NVSHMEM's blocking calls wait for NVSHMEM's own streams, and therefore also for this earlier
    /// work. If such a wait exceeds the deadline, the context becomes unusable.
    ///
    /// # Errors
    /// [`MisuseKind::Context`] if `stream` is being captured. Other errors are the same as for
    /// [`put`](Self::put).
    pub fn put_nbi<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_putmem_nbi_on_stream";
        self.nbi(CALL, ("the target", target), ("the source", source), pe, stream, |api, remote, local, bytes, to, stream| {
            // SAFETY: both ranges are inside the symmetric heap, whose memory is freed only after a
            // quiet.
            unsafe { api.nvshmemx_putmem_nbi_on_stream(remote, local, bytes, to, stream) }
        })
    }

    /// Reads `source` on the PE `pe` into `target`, in stream order.
    ///
    /// # Errors
    /// Returns the same errors as [`put`](Self::put).
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
        // SAFETY: the remote range is inside the symmetric heap, and the local range is inside its
        // buffer. Both are kept alive until the stream has completed.
        enqueue.call(|api, _| unsafe {
            api.nvshmemx_getmem_on_stream(pointer(local), pointer(remote), bytes, from, stream.cu_stream())
        })
    }

    /// Reads like [`get`](Self::get), but the get is complete only after a quiet. The target must
    /// not be used before the quiet is complete.
    ///
    /// # Errors
    /// Returns the same errors as [`put_nbi`](Self::put_nbi).
    pub fn get_nbi<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_getmem_nbi_on_stream";
        self.nbi(CALL, ("the source", source), ("the target", target), pe, stream, |api, remote, local, bytes, from, stream| {
            // SAFETY: both ranges are inside the symmetric heap, whose memory is freed only after a
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
        enqueue.starts_nbi(remote, local);
        enqueue.call(|api, _| function(api, pointer(there), pointer(here), bytes, to, stream.cu_stream()))
    }

    /// Writes elements of `source` to `target` on the PE `pe`, with strides, in stream order.
    /// NVSHMEM does not support this call for a PE that is reached only over the network.
    ///
    /// # Errors
    /// [`MisuseKind::Value`] if a stride is 0 or too large. [`MisuseKind::OutOfRange`] if the last
    /// element is outside its buffer. [`MisuseKind::Unregistered`] if `pe` is reached only over the
    /// network. Other errors are the same as for [`put`](Self::put).
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

    /// Reads elements of `source` on the PE `pe` into `target`, with strides, in stream order.
    ///
    /// # Errors
    /// Returns the same errors as [`put_strided`](Self::put_strided).
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

    #[allow(clippy::too_many_arguments, reason = "puts and gets share these parameters")]
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
            // SAFETY: every element is inside the symmetric heap, both in the source and in the
            // target. The memory is kept alive until the stream has completed.
            unsafe {
                function(pointer(to), pointer(from), target_stride, source_stride, strides.count, other, stream.cu_stream())
            };
            Ok(())
        })
    }

    /// Checks a strided transfer between this PE and the PE `pe`. Every element must be inside its
    /// buffer, and the memory of `pe` must be mapped in this process. If `pe` is this PE, source
    /// and target must not overlap. Returns the number of `pe`, and the strides for NVSHMEM.
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
        // The stride of a single element has no effect, but CUDA would refuse a large stride.
        let strides = if strides.count == 1 { Strides { count: 1, source: 1, dest: 1 } } else { strides };
        for (what, stride) in [("the target's stride", strides.dest), ("the source's stride", strides.source)] {
            // CUDA's copies have a maximum pitch. For a larger stride, NVSHMEM would end the
            // process.
            if stride.saturating_mul(size_of::<T>()) > i32::MAX as usize {
                let found = i64::try_from(stride).unwrap_or(i64::MAX);
                return Err(NvshmemError::misuse(
                    call,
                    MisuseKind::Value { what, found, expected: "a stride of less than 2 GiB" },
                ));
            }
        }
        if !self.heap.mapped(remote.address())?[pe.index()] {
            // NVSHMEM would print that the transfer is not implemented, and end the process.
            return Err(NvshmemError::misuse(call, MisuseKind::Unregistered { what: remote_name, pe }));
        }
        if pe == self.comm.pe {
            let bytes = |stride: usize| ((strides.count - 1) * stride + 1) * size_of::<T>();
            let (from, to) = (source.address(), target.address());
            check_apart(call, ("the source", from, bytes(strides.source)), ("the target", to, bytes(strides.dest)))?;
        }
        Ok((other, strides))
    }

    /// Writes `value` to the first element of `target` on the PE `pe`, in stream order.
    ///
    /// # Errors
    /// [`MisuseKind::Length`] if the target is empty. [`MisuseKind::Context`] if `stream` is being
    /// captured. Other errors are the same as for [`put`](Self::put).
    pub fn put_value<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        value: T,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_p_on_stream";
        let mut enqueue = Enqueue::begin(&self.comm, CALL, stream)?;
        enqueue.not_captured(
            "the stream is being captured, and a graph cannot contain this transfer, because the value that NVSHMEM would read may be lost when the call returns; use put",
        )?;
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
                    // SAFETY: elements have the integer's width, and every bit pattern is a valid
                    // integer. The address is inside the symmetric heap, and its memory is kept
                    // alive.
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
    fn strided_range_that_ends_outside_the_buffer_is_refused() {
        assert!(span("test", "the target", 3, 4, 10).is_ok());
        let error = span("test", "the target", 3, 4, 9).expect_err("the last element is out of range");
        assert_eq!(error.to_string(), "test: the target is 0..10, expected a range within 9 elements");
        assert!(span("test", "the target", 3, 0, 0).is_ok());
        assert!(span("test", "the target", 0, 1, 1).is_err());
        assert!(span("test", "the target", usize::MAX, 3, 9).is_err(), "the end of the range must not overflow");
    }
}
