//! The kernels of `peerweave-stream-kernels`. They are loaded once, so that launches need no
//! look-up.

use std::sync::{Arc, OnceLock, PoisonError};

use peerweave_driver::CudaStream;
use peerweave_driver::launch::LoadedKernel;
use peerweave_stream_kernels::{stream_atomic, stream_barrier, stream_fill, stream_put_element, stream_signal, stream_wait};
use peerweave_types::DType;

use crate::error::CudaError;
use crate::gpu::Gpu;

/// The loaded kernels of one GPU.
pub(crate) struct Kernels {
    pub(crate) signal: LoadedKernel,
    pub(crate) wait: LoadedKernel,
    pub(crate) atomic: LoadedKernel,
    pub(crate) barrier: LoadedKernel,
    pub(crate) put_element: LoadedKernel,
    pub(crate) fill: LoadedKernel,
    /// Address of the kernels' context, which does not change while the GPU lives.
    context: u64,
}

impl Kernels {
    /// Loads every kernel.
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

    /// Returns the address of the kernels' context.
    pub(crate) fn context(&self) -> u64 {
        self.context
    }
}

/// The loaded kernels that combine operands of teams on several hosts, by type.
pub(crate) type Combiners = [OnceLock<LoadedKernel>; DType::ALL.len()];

/// Records that this backend may enqueue work on a stream, for as long as the caller has the
/// stream. The heap, the tables and the report live until that work has ended.
pub(crate) fn note(gpu: &Gpu, stream: &Arc<CudaStream>) {
    let inner = &*gpu.0;
    inner.tables.lock().unwrap_or_else(PoisonError::into_inner).note(stream);
    inner.report.note(stream);
    inner.sync.note(stream);
    inner.heap.note_multicast(stream, None);
}
