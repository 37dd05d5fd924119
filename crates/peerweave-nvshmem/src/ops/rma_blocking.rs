//! Puts and gets for which the host waits, within the context's deadline: contiguous, strided, and
//! of single values.
//!
//! These puts and gets are not ordered with work on streams. Invariant: the memory of a call is
//! kept alive until the call has returned from NVSHMEM, even after a timeout.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use peerweave_driver::cudarc::driver::sys::CUstream;
use peerweave_driver::{CudaStream, DriverError, is_capturing};
use peerweave_types::{Element, Pe, Strides};

use crate::comm::streams::wait_stream;
use crate::context::Context;
use crate::error::{MisuseKind, NvshmemError};
use crate::ops::enqueue::{by_width, check_context, check_len, check_pair, pointer};
use crate::ops::rma::one_at_least;
use crate::{SymmetricBuffer, sys};

/// Calls the macro `$call` with `u8`, `u16`, `u32` or `u64`: the type that has the size of `$T`.
/// NVSHMEM's functions take and return single elements as such integers.
macro_rules! by_bits {
    ($T:ty, $call:ident) => {
        match size_of::<$T>() {
            1 => $call!(u8),
            2 => $call!(u16),
            4 => $call!(u32),
            _ => $call!(u64),
        }
    };
}

impl Context {
    /// Reads the first element of `source` on the PE `pe`, and waits for its value within the
    /// context's deadline. NVSHMEM does not support this call for a PE that is reached only over
    /// the network.
    ///
    /// # Errors
    /// [`NvshmemError::Timeout`] if the call exceeds the deadline. [`MisuseKind::Unregistered`] if
    /// `pe` is reached only over the network. Other errors are the same as for [`put`](Self::put).
    pub fn get_value_blocking<T: Element>(&self, source: &SymmetricBuffer<T>, pe: Pe) -> Result<T, NvshmemError> {
        const CALL: &str = "nvshmem_g";
        let (remote, from) = self.check_value(CALL, "the source", source, pe)?;
        let kept = source.clone();
        self.comm.block(CALL, move |_, families| {
            let _kept = kept;
            let function = families.g(by_width::<T>())?;
            macro_rules! call {
                ($bits:ty) => {{
                    type Function = unsafe extern "C" fn(*const $bits, c_int) -> $bits;
                    // SAFETY: the address is that of the function for integers of this width.
                    let function = unsafe { std::mem::transmute::<sys::ByValue, Function>(function) };
                    // SAFETY: the address is inside the symmetric heap. Elements have the integer's
                    // width, and every bit pattern is a valid element.
                    unsafe { std::mem::transmute_copy::<$bits, T>(&function(pointer(remote), from)) }
                }};
            }
            Ok(by_bits!(T, call))
        })
    }

    /// Waits until the earlier work on `stream` has completed, and then reads a value like
    /// [`get_value_blocking`](Self::get_value_blocking). The host waits, because NVSHMEM returns
    /// the value to the host.
    ///
    /// # Errors
    /// [`MisuseKind::Device`] if `stream` belongs to another device. [`NvshmemError::Cuda`] if
    /// `stream` is being captured. Other errors are the same as for
    /// [`get_value_blocking`](Self::get_value_blocking).
    pub fn get_value<T: Element>(
        &self,
        source: &SymmetricBuffer<T>,
        pe: Pe,
        stream: &Arc<CudaStream>,
    ) -> Result<T, NvshmemError> {
        const CALL: &str = "nvshmemx_g_on_stream";
        self.comm.check_stream(CALL, stream)?;
        let (remote, from) = self.check_value(CALL, "the source", source, pe)?;
        if is_capturing(stream)? {
            return Err(DriverError::Capturing { call: CALL }.into());
        }
        source.allocation.note(stream);
        // The wait is made here, because a wait for the stream inside NVSHMEM would have no
        // deadline.
        wait_stream(CALL, &self.comm, stream)?;
        let kept = (source.clone(), Arc::clone(stream));
        self.comm.block(CALL, move |_, families| {
            let function = families.g_on_stream(by_width::<T>())?;
            let stream = kept.1.cu_stream();
            macro_rules! call {
                ($bits:ty) => {{
                    type Function = unsafe extern "C" fn(*const $bits, c_int, CUstream) -> $bits;
                    // SAFETY: the address is that of the function for integers of this width.
                    let function = unsafe { std::mem::transmute::<sys::ByValue, Function>(function) };
                    // SAFETY: as in `get_value_blocking`; the stream is kept alive.
                    unsafe { std::mem::transmute_copy::<$bits, T>(&function(pointer(remote), from, stream)) }
                }};
            }
            Ok(by_bits!(T, call))
        })
    }

    /// Writes `value` to the first element of `target` on the PE `pe`, and waits for completion
    /// within the context's deadline.
    ///
    /// # Errors
    /// Returns the same errors as [`get_value_blocking`](Self::get_value_blocking).
    pub fn put_value_blocking<T: Element>(&self, target: &SymmetricBuffer<T>, value: T, pe: Pe) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmem_p";
        let (remote, to) = self.check_value(CALL, "the target", target, pe)?;
        let kept = target.clone();
        self.comm.block(CALL, move |api, families| {
            let _kept = kept;
            let function = families.p(by_width::<T>())?;
            macro_rules! call {
                ($bits:ty) => {{
                    type Function = unsafe extern "C" fn(*mut $bits, $bits, c_int);
                    // SAFETY: the address is that of the function for integers of this width.
                    let function = unsafe { std::mem::transmute::<sys::ByValue, Function>(function) };
                    // SAFETY: elements have the integer's width, and every bit pattern is a valid
                    // integer. The address is inside the symmetric heap.
                    unsafe { function(pointer(remote), std::mem::transmute_copy::<T, $bits>(&value), to) }
                }};
            }
            by_bits!(T, call);
            // NVSHMEM may have used one of its own streams, so the put is completed by a quiet.
            // SAFETY: NVSHMEM is initialised.
            unsafe { api.nvshmem_quiet() }
        })?;
        self.comm.check_device_errors()
    }

    /// Checks a transfer of a single value. The PE and the element must exist, and the memory of
    /// the PE must be mapped in this process. Returns the address of the element, and the number of
    /// the PE.
    fn check_value<T: Element>(
        &self,
        call: &'static str,
        what: &'static str,
        remote: &SymmetricBuffer<T>,
        pe: Pe,
    ) -> Result<(u64, c_int), NvshmemError> {
        let comm = &self.comm;
        comm.check_usable(call)?;
        let other = comm.check_pe(call, "the PE", pe)?;
        one_at_least(call, what, remote)?;
        check_context(comm, call, what, remote)?;
        if !self.heap.mapped(remote.address())?[pe.index()] {
            return Err(NvshmemError::misuse(call, MisuseKind::Unregistered { what, pe }));
        }
        Ok((remote.address(), other))
    }

    /// Writes elements of `source` to `target` on the PE `pe`, with strides, and waits for
    /// completion within the context's deadline.
    ///
    /// # Errors
    /// [`NvshmemError::Timeout`] if the call exceeds the deadline. Other errors are the same as for
    /// [`put_strided`](Self::put_strided).
    pub fn put_strided_blocking<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        strides: Strides,
        pe: Pe,
    ) -> Result<(), NvshmemError> {
        self.strided_blocking("nvshmem_iput", target, source, strides, ("the target", target, pe))
    }

    /// Reads elements of `source` on the PE `pe` into `target`, with strides, and waits for
    /// completion within the context's deadline.
    ///
    /// # Errors
    /// Returns the same errors as [`put_strided_blocking`](Self::put_strided_blocking).
    pub fn get_strided_blocking<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        strides: Strides,
        pe: Pe,
    ) -> Result<(), NvshmemError> {
        self.strided_blocking("nvshmem_iget", target, source, strides, ("the source", source, pe))
    }

    fn strided_blocking<T: Element>(
        &self,
        call: &'static str,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        strides: Strides,
        remote: (&'static str, &SymmetricBuffer<T>, Pe),
    ) -> Result<(), NvshmemError> {
        self.comm.check_usable(call)?;
        let (other, strides) = self.check_strided(call, target, source, strides, remote)?;
        if strides.count == 0 {
            return Ok(());
        }
        let (to, from) = (target.address(), source.address());
        let kept = (target.clone(), source.clone());
        self.comm.block(call, move |api, families| {
            let _kept = kept;
            let kind = by_width::<T>();
            let function = if call == "nvshmem_iput" { families.iput(kind)? } else { families.iget(kind)? };
            let (target_stride, source_stride) = (strides.dest as isize, strides.source as isize);
            // SAFETY: every element is inside the symmetric heap, both in the source and in the
            // target. The memory is kept alive until the call has returned.
            unsafe { function(pointer(to), pointer(from), target_stride, source_stride, strides.count, other) };
            // SAFETY: NVSHMEM is initialised.
            unsafe { api.nvshmem_quiet() }
        })?;
        self.comm.check_device_errors()
    }

    /// Writes `source` to `target` on the PE `pe`, and waits within the context's deadline until
    /// the source may be overwritten.
    ///
    /// If `pe` is reached only over the network, the data may arrive after this call has returned.
    /// [`quiet_blocking`](Self::quiet_blocking),
    /// [`Team::barrier_blocking`](crate::Team::barrier_blocking) and
    /// [`barrier_all_blocking`](Self::barrier_all_blocking) complete such a put. A quiet or a
    /// barrier on a stream does not complete such a put.
    ///
    /// # Errors
    /// [`NvshmemError::Timeout`] if the call exceeds the deadline. Other errors are the same as for
    /// [`put`](Self::put).
    pub fn put_blocking<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        pe: Pe,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmem_putmem";
        let Some((remote, local, bytes, to)) = self.blocking(CALL, ("the target", target), ("the source", source), pe)? else {
            return Ok(());
        };
        let by_network = !self.heap.mapped(remote)?[pe.index()];
        let kept = (target.clone(), source.clone());
        self.comm.block(CALL, move |api, _| {
            let _kept = kept;
            // SAFETY: both ranges are inside the symmetric heap. They are kept alive until the call
            // has returned.
            unsafe { api.nvshmem_putmem(pointer(remote), pointer(local), bytes, to) }
        })?;
        if by_network {
            // Set after the call, because a quiet that another thread made before has not completed
            // this put.
            self.comm.enqueued.sent.store(true, Ordering::Relaxed);
        }
        self.comm.check_device_errors()
    }

    /// Reads `source` on the PE `pe` into `target`, and waits for completion within the context's
    /// deadline.
    ///
    /// # Errors
    /// Returns the same errors as [`put_blocking`](Self::put_blocking).
    pub fn get_blocking<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        pe: Pe,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmem_getmem";
        let Some((remote, local, bytes, from)) = self.blocking(CALL, ("the source", source), ("the target", target), pe)? else {
            return Ok(());
        };
        let kept = (target.clone(), source.clone());
        self.comm.block(CALL, move |api, _| {
            let _kept = kept;
            // SAFETY: both ranges are inside the symmetric heap. They are kept alive until the call
            // has returned.
            unsafe { api.nvshmem_getmem(pointer(local), pointer(remote), bytes, from) }
        })?;
        self.comm.check_device_errors()
    }

    /// Checks a put or a get that uses no stream. Returns the address of the remote memory, the
    /// address of the local memory, the number of bytes, and the number of the PE. Returns `None`
    /// if the transfer has no elements.
    fn blocking<T: Element>(
        &self,
        call: &'static str,
        (remote_name, remote): (&'static str, &SymmetricBuffer<T>),
        (local_name, local): (&'static str, &SymmetricBuffer<T>),
        pe: Pe,
    ) -> Result<Option<(u64, u64, usize, c_int)>, NvshmemError> {
        let comm = &self.comm;
        comm.check_usable(call)?;
        let other = comm.check_pe(call, "the PE", pe)?;
        check_context(comm, call, remote_name, remote)?;
        check_context(comm, call, local_name, local)?;
        check_len(call, local_name, local.len(), remote.len())?;
        let (there, here, bytes) = (remote.address(), local.address(), remote.len() * size_of::<T>());
        if bytes == 0 {
            return Ok(None);
        }
        // Source and target are symmetric, so no registration is needed.
        check_pair(&self.heap, call, (local_name, here), (remote_name, there), bytes, pe)?;
        Ok(Some((there, here, bytes, other)))
    }
}
