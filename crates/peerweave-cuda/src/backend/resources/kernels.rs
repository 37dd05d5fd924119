//! The kernels of `peerweave-stream-kernels`. A PE loads them once, so that launches need no
//! look-up.

use std::sync::{Arc, OnceLock, PoisonError};

use peerweave_driver::CudaStream;
use peerweave_driver::launch::LoadedKernel;
use peerweave_stream_kernels::{stream_atomic, stream_barrier, stream_fill, stream_put_element, stream_signal, stream_wait};
use peerweave_types::DType;

use crate::error::CudaError;
use crate::gpu::Gpu;

/// The kernels of `peerweave-stream-kernels` that are loaded on one GPU.
pub(crate) struct Kernels {
    pub(crate) signal: LoadedKernel,
    pub(crate) wait: LoadedKernel,
    pub(crate) atomic: LoadedKernel,
    pub(crate) barrier: LoadedKernel,
    pub(crate) put_element: LoadedKernel,
    pub(crate) fill: LoadedKernel,
    /// Device address of the [`KernelContext`](peerweave_types::KernelContext), which is the first
    /// argument of every kernel. The address does not change until the [`Gpu`] is dropped.
    context: u64,
}

impl Kernels {
    /// Loads all kernels of this struct on a GPU.
    pub(crate) fn load(gpu: &Gpu) -> Result<Self, CudaError> {
        Ok(Self {
            signal: gpu.load(&stream_signal::KERNEL)?,
            wait: gpu.load(&stream_wait::KERNEL)?,
            atomic: gpu.load(&stream_atomic::KERNEL)?,
            barrier: gpu.load(&stream_barrier::KERNEL)?,
            put_element: gpu.load(&stream_put_element::KERNEL)?,
            fill: gpu.load(&stream_fill::KERNEL)?,
            context: gpu.0.tables.lock().unwrap_or_else(PoisonError::into_inner).address(),
        })
    }

    /// Returns the device address of the context that kernels receive as their first argument.
    pub(crate) fn context(&self) -> u64 {
        self.context
    }
}

/// One kernel for each element type, indexed by [`DType`], that combines operands of a team on
/// several hosts. A kernel is loaded at its first use.
pub(crate) type Combiners = [OnceLock<LoadedKernel>; DType::ALL.len()];

/// Records that this backend may enqueue kernels on `stream` at any time. The memory that all
/// kernels use then stays allocated until the work of `stream` has ended. This memory consists of
/// the kernel context with its tables, the failure report, the synchronisation lines of teams, and
/// the multicast mapping of the heap.
pub(crate) fn note(gpu: &Gpu, stream: &Arc<CudaStream>) {
    let inner = &*gpu.0;
    inner.tables.lock().unwrap_or_else(PoisonError::into_inner).note(stream);
    inner.report.note(stream);
    inner.sync.note(stream);
    inner.heap.note_multicast(stream, None);
}
