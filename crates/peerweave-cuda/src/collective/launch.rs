//! Loads and enqueues the kernels of collectives.

use std::sync::{Arc, OnceLock, PoisonError};

use peerweave_collectives::Call;
use peerweave_collectives::transfer::Transfers;
use peerweave_device::launch::Kernel;
use peerweave_driver::launch::{Arguments, LaunchConfig, LoadedKernel};
use peerweave_driver::{CudaStream, Keep, is_capturing, join};
use peerweave_types::{DType, KernelArg, KernelArgs};

use super::Collectives;
use crate::error::{CudaError, misuse};
use crate::route::{self, Route};

impl Collectives {
    /// Returns the loaded kernel in `slot`. If the slot is empty, loads the kernel that `find`
    /// returns, and stores the loaded kernel in the slot. `dtype` is the element type of the call,
    /// or `None` if the kernel is the same for all types.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] if `find` returns `None`: no kernel supports `dtype`. Errors of the
    /// driver if the kernel cannot be loaded.
    pub(super) fn loaded<'a, A: KernelArgs + 'static>(
        &self,
        slot: &'a OnceLock<LoadedKernel>,
        call: &'static str,
        dtype: Option<DType>,
        find: impl FnOnce() -> Option<&'static Kernel<A>>,
    ) -> Result<&'a LoadedKernel, CudaError> {
        if let Some(kernel) = slot.get() {
            return Ok(kernel);
        }
        let Some(kernel) = find() else {
            let Some(dtype) = dtype else {
                panic!("peerweave-cuda bug: no kernel of {call} for {} ranks", self.staging.limits.ranks)
            };
            return Err(misuse(call, "dtype", dtype.name(), "an element type that this call can reduce"));
        };
        let loaded = self.gpu.0.entry(kernel.ptx(), kernel.name())?;
        Ok(slot.get_or_init(|| loaded))
    }

    /// Enqueues a launch of `kernel`. The arguments of the kernel are the context and `call`.
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce), for the operands of the call.
    pub(super) unsafe fn enqueue(
        &self,
        name: &'static str,
        stream: &Arc<CudaStream>,
        kernel: &LoadedKernel,
        route: Route,
        call: Call,
        bytes: u64,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.enqueue_with(name, stream, kernel, route, &call, None::<&Transfers>, bytes) }
    }

    /// Enqueues a reduce_scatter or a scan, as one or more launches. Each launch handles a range of
    /// elements that fits into a bank, a buffer in which a rank receives data. [`Call::count`] of
    /// `call` is the number of elements in a part of a reduce_scatter, or in an input of a scan. An
    /// element has `size` bytes.
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce), for the operands of the call.
    pub(super) unsafe fn enqueue_in_pieces(
        &self,
        name: &'static str,
        stream: &Arc<CudaStream>,
        kernel: &LoadedKernel,
        call: &Call,
        size: u64,
    ) -> Result<(), CudaError> {
        let limits = &self.staging.limits;
        let most = route::most_part_bytes(limits) / size;
        for start in (0..call.count).step_by(most as usize) {
            let (skipped, count) = (start * size, most.min(call.count - start));
            let piece = Call { send: call.send + skipped, recv: call.recv + skipped, count, ..*call };
            let route = route::parts(count * size, limits);
            // SAFETY: the caller guarantees the safety requirements of the called function.
            unsafe { self.enqueue(name, stream, kernel, route, piece, count * size * u64::from(limits.ranks)) }?;
        }
        Ok(())
    }

    /// Like [`enqueue`](Self::enqueue), but if `second` is `Some`, its value is another argument of
    /// the kernel, after `call`.
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce), for the operands of the call. The parameters of the
    /// kernel are the context, a [`Call`] and, if `second` is `Some`, an `A`.
    #[expect(clippy::too_many_arguments, reason = "a launch needs all these arguments")]
    pub(super) unsafe fn enqueue_with<A: KernelArg>(
        &self,
        name: &'static str,
        stream: &Arc<CudaStream>,
        kernel: &LoadedKernel,
        route: Route,
        call: &Call,
        second: Option<&A>,
        bytes: u64,
    ) -> Result<(), CudaError> {
        let inner = &*self.gpu.0;
        if let Some(failure) = &*inner.failed() {
            return Err(CudaError::Failed { call: name, failure: failure.clone() });
        }
        let capturing = is_capturing(stream)?;
        // This thread holds the lock until the launch. So if two threads make calls, the kernels
        // are launched in the order in which their streams are ordered here.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = last.as_ref().is_some_and(|last| last.cu_stream() == stream.cu_stream());
        let tables = inner.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let mut keep: Vec<Keep> = Vec::new();
        if capturing {
            keep.extend(tables.keep());
            keep.push(inner.report.keep());
            keep.extend(self.staging.keep());
        } else if !is_same {
            if let Some(last) = last.as_ref()
                && !is_capturing(last)?
            {
                join(stream, last)?;
            }
            *last = Some(Arc::clone(stream));
            self.staging.note(stream);
            tables.note(stream);
            inner.report.note(stream);
        }
        let context = tables.address();
        drop(tables);
        let mut config = LaunchConfig::new(route.blocks, route.threads);
        config.programmatic = self.options.programmatic && self.routes.is_programmatic(bytes);
        let arguments = Arguments::new().with(&context).with(call);
        let arguments = match second {
            Some(second) => arguments.with(second),
            None => arguments,
        };
        // SAFETY: the kernel takes the context, the call and the second argument. The areas are
        // live memory of every member, recorded with the stream or kept by the graph. The caller
        // guarantees the operands.
        unsafe { kernel.launch_into(stream, &config, &arguments, capturing.then_some(keep)) }?;
        Ok(())
    }
}
