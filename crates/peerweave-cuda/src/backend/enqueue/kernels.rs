//! Launches the kernels of `peerweave-stream-kernels`, and converts the errors of launches.

use std::sync::PoisonError;

use peerweave_core::Error;
use peerweave_driver::Keep;
use peerweave_driver::launch::{Arguments, LaunchConfig, LoadedKernel};
use peerweave_types::KernelArgs;

use super::{Enqueue, Source};
use crate::backend::error::{driver, portable};
use crate::backend::resources::Kernels;
use crate::backend::teams::TeamOf;
use crate::error::CudaError;

impl Enqueue<'_> {
    /// Enqueues the kernel that `of` selects from [`Kernels`], with one thread.
    pub(crate) fn kernel<A: KernelArgs>(&mut self, of: impl Fn(&Kernels) -> &LoadedKernel, arguments: A) -> Result<(), Error> {
        self.launch_kernel(of, LaunchConfig::new(1, 1), arguments)
    }

    /// Enqueues the kernel that `of` selects from [`Kernels`]. The caller of `ops::enqueue`, or the
    /// graph that captures the operation, must keep alive the symmetric memory to which `arguments`
    /// refer.
    pub(crate) fn launch_kernel<A: KernelArgs>(
        &mut self,
        of: impl Fn(&Kernels) -> &LoadedKernel,
        config: LaunchConfig,
        arguments: A,
    ) -> Result<(), Error> {
        self.state.poisoned(self.call, self.state.world())?;
        let kernels = &*self.gpu.kernels;
        let context = kernels.context();
        let all = Arguments::new().with(&context).with_all(&arguments);
        let keep = self.capturing.then(|| self.kept_by_kernels());
        // SAFETY: `Kernel::new` guarantees that the entries take the context and these arguments.
        // `note` keeps the heap, the tables and the report alive, the operation holds its slots,
        // and a graph keeps all of them.
        let launched = unsafe { of(kernels).launch_into(self.stream, &config, &all, keep) };
        launched.map_err(|error| driver(self.call, error))
    }

    /// Returns handles of the memory that every kernel uses. A graph with a kernel must own these
    /// handles, so that the memory stays allocated.
    pub(crate) fn kept_by_kernels(&self) -> Vec<Keep> {
        let inner = &*self.gpu.0;
        let mut keep = inner.tables.lock().unwrap_or_else(PoisonError::into_inner).keep();
        keep.push(inner.report.keep());
        keep.extend(inner.sync.keep());
        inner.heap.note_multicast(self.stream, Some(&mut keep));
        keep
    }

    /// Converts `enqueued`, the result of enqueuing the kernel of a collective. Returns
    /// [`Source::Kernel`] if the kernel was enqueued, and otherwise the error of the portable API.
    /// This error is [`Error::Poisoned`] if this PE has recorded a failure.
    pub(crate) fn enqueued(&self, team: &TeamOf, enqueued: Result<(), CudaError>) -> Result<Source, Error> {
        match enqueued {
            Ok(()) => Ok(Source::Kernel),
            Err(error) => match self.state.poisoned(self.call, team.name()) {
                Err(poisoned) => Err(poisoned),
                Ok(()) => Err(portable(self.call, team.name(), error)),
            },
        }
    }
}
