//! The kernels of `peerweave-stream-kernels`. They are loaded once, so that launches need no
//! look-up.

use peerweave_core::Error;
use peerweave_driver::CudaStream;
use peerweave_driver::launch::{Arguments, LaunchConfig, LoadedKernel};
use peerweave_stream_kernels::{stream_atomic, stream_barrier, stream_fill, stream_put_element, stream_signal, stream_wait};
use peerweave_types::KernelArgs;

use std::sync::{Arc, PoisonError};

use super::enqueue::Enqueue;
use super::error::driver;
use crate::error::CudaError;
use crate::gpu::Gpu;

/// The loaded kernels of one GPU.
pub(super) struct Kernels {
    pub(super) signal: LoadedKernel,
    pub(super) wait: LoadedKernel,
    pub(super) atomic: LoadedKernel,
    pub(super) barrier: LoadedKernel,
    pub(super) put_element: LoadedKernel,
    pub(super) fill: LoadedKernel,
    /// Address of the kernels' context, which does not change while the GPU lives.
    context: u64,
}

impl Kernels {
    /// Loads every kernel.
    pub(super) fn load(gpu: &Gpu) -> Result<Self, CudaError> {
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
}

/// Records that work of this backend will be enqueued on a stream, for as long as the caller has
/// the stream. The heap, the tables and the report live until that work has ended.
pub(super) fn note(gpu: &Gpu, stream: &Arc<CudaStream>) {
    let inner = &*gpu.0;
    inner.tables.lock().unwrap_or_else(PoisonError::into_inner).note(stream);
    inner.report.note(stream);
    inner.sync.note(stream);
    inner.heap.note_multicast(stream, None);
}

impl Enqueue<'_> {
    /// Launches one of [`Kernels`] with one thread.
    pub(super) fn kernel<A: KernelArgs>(&mut self, of: impl Fn(&Kernels) -> &LoadedKernel, arguments: A) -> Result<(), Error> {
        self.launch_kernel(of, LaunchConfig::new(1, 1), arguments)
    }

    /// Launches one of [`Kernels`] with these arguments. The caller of the operation or the graph
    /// holds the owners of symmetric memory among the arguments.
    pub(super) fn launch_kernel<A: KernelArgs>(
        &mut self,
        of: impl Fn(&Kernels) -> &LoadedKernel,
        config: LaunchConfig,
        arguments: A,
    ) -> Result<(), Error> {
        self.state.poisoned(self.call, self.state.world())?;
        let kernels = &*self.gpu.kernels;
        let all = Arguments::new().with(&kernels.context).with_all(&arguments);
        let keep = self.capturing.then(|| {
            let inner = &*self.gpu.0;
            let mut keep = inner.tables.lock().unwrap_or_else(PoisonError::into_inner).keep();
            keep.push(inner.report.keep());
            keep.extend(inner.sync.keep());
            inner.heap.note_multicast(self.stream, Some(&mut keep));
            keep
        });
        // SAFETY: `Kernel::new` guarantees that the entries take the context and these arguments.
        // `note` keeps the heap, the tables and the report alive, the operation holds its slots,
        // and a graph keeps all of them.
        let launched = unsafe { of(kernels).launch_into(self.stream, &config, &all, keep) };
        launched.map_err(|error| driver(self.call, error))
    }
}
