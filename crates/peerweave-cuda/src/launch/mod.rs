//! Launches of kernels with typed arguments. A launch checks the arguments, and keeps the memory to
//! which the arguments refer allocated until the kernel has ended.

mod wait;

use std::fmt;
use std::sync::{Arc, PoisonError};

use peerweave_core::backend::BoundKernel;
use peerweave_device::launch::{Kernel, PtxImage};
use peerweave_driver::launch::{Arguments, LaunchConfig, LoadedKernel};
use peerweave_driver::{CudaStream, DeviceBuffer as _, DeviceMemory, Keep, PrivateStream, is_capturing};
use peerweave_types::{ArgVisitor, Dim3, KernelArgs, KernelTeam, SymOffset};

use crate::error::{CudaError, misuse};
use crate::gpu::teams::Members;
use crate::gpu::{Gpu, Inner};
use crate::heap::Block;

/// A CUDA stream on the device of a [`Gpu`]. A `Stream` dereferences to a stream of cudarc, for
/// operations that `Stream` does not have.
pub struct Stream {
    gpu: Gpu,
    stream: PrivateStream,
}

impl Stream {
    /// Enqueues a kernel with `grid` blocks of `block` threads. See [`Gpu::launch`].
    ///
    /// # Errors
    /// As for [`Gpu::launch`].
    pub fn launch<A: KernelArgs>(
        &self,
        kernel: &Kernel<A>,
        grid: impl Into<Dim3>,
        block: impl Into<Dim3>,
        args: A,
    ) -> Result<(), CudaError> {
        self.launch_with(kernel, LaunchConfig::new(grid, block), args)
    }

    /// Like [`launch`](Self::launch), but with a launch configuration. The configuration can
    /// request dynamic shared memory, a cooperative launch or programmatic dependent launch.
    ///
    /// # Errors
    /// As for [`Gpu::launch`].
    pub fn launch_with<A: KernelArgs>(&self, kernel: &Kernel<A>, config: LaunchConfig, args: A) -> Result<(), CudaError> {
        self.gpu.launch(&self.stream, kernel, config, args)
    }

    /// Waits until all work in the stream is complete. See [`Gpu::wait`].
    ///
    /// # Errors
    /// As for [`Gpu::wait`].
    pub fn wait(&self) -> Result<(), CudaError> {
        self.gpu.wait(&self.stream)
    }

    /// Returns the GPU of the stream.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

impl std::ops::Deref for Stream {
    type Target = Arc<CudaStream>;

    fn deref(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl Inner {
    /// Returns the device address of the context that kernels receive. The address does not change
    /// while the GPU lives.
    fn context_address(&self) -> u64 {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner).address()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?})", self.gpu)
    }
}

/// A visitor of kernel arguments. It looks up the memory and the teams to which the arguments
/// refer, and stores handles of them.
struct Lookup<'a> {
    inner: &'a Inner,
    blocks: Vec<Arc<Block>>,
    locals: Vec<Arc<DeviceMemory<u8>>>,
    teams: Vec<Arc<Members>>,
    refused: Option<CudaError>,
}

const CALL: &str = "launch";

impl ArgVisitor for Lookup<'_> {
    fn symmetric(&mut self, offset: SymOffset, bytes: u64) {
        match self.inner.allocation(offset, bytes) {
            _ if bytes == 0 => {}
            Some(block) => self.blocks.push(block),
            None => {
                let value = format!("{bytes} bytes at offset {:#x}", offset.0);
                let expected = "bytes of this GPU's heap, within one allocation that has not been freed";
                self.refused.get_or_insert_with(|| misuse(CALL, "the symmetric slice", value, expected));
            }
        }
    }

    /// Visits a range of device memory. If [`Gpu::alloc_local`] has allocated the memory, stores a
    /// handle that keeps the memory allocated. Otherwise does nothing: the `unsafe` code that
    /// created the argument has guaranteed that the memory stays allocated.
    fn device(&mut self, address: u64, _: u64) {
        self.locals.extend(self.inner.local(address));
    }

    fn team(&mut self, team: KernelTeam) {
        match self.inner.teams.find(team) {
            _ if team == KernelTeam::WORLD => {}
            Some(members) => self.teams.push(members),
            None => {
                let expected = "a team of this GPU that has not been destroyed";
                self.refused.get_or_insert_with(|| misuse(CALL, "the team", format!("number {}", team.index()), expected));
            }
        }
    }
}

impl Gpu {
    /// Creates a stream in the GPU's context. Work in this stream is not ordered with work in other
    /// streams.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn stream(&self) -> Result<Stream, CudaError> {
        Ok(Stream { gpu: self.clone(), stream: PrivateStream::new(self.context())? })
    }

    /// Loads a kernel, so that its first launch does not need to load the kernel. Compiles the
    /// kernel together with the kernels of its crate that use the same `static`.
    ///
    /// The first compilation of a kernel's PTX can take seconds. If a launch compiles the kernel,
    /// kernels of other PEs that wait for this kernel are delayed. Loading may also wait for
    /// kernels that run on this device. So call `load` on all PEs, then call
    /// [`barrier`](Self::barrier), then launch.
    ///
    /// # Errors
    /// [`CudaError::NoPtx`] if the kernel's crate has no PTX for the device. Errors from loading
    /// and linking.
    pub fn load<A: KernelArgs>(&self, kernel: &Kernel<A>) -> Result<LoadedKernel, CudaError> {
        self.0.kernel(kernel.ptx(), kernel.name())
    }

    /// Loads all kernels of a crate. `image` is
    /// [`Kernel::ptx`](peerweave_device::launch::Kernel::ptx) of any kernel of the crate. If PEs of
    /// one machine make this call at the same time, they share the compilation through the disk
    /// caches of the driver and of `peerweave-link`.
    ///
    /// # Errors
    /// [`CudaError::NoPtx`] if the crate has no PTX for the device. If a kernel cannot be loaded or
    /// linked, the error of the first such kernel.
    pub fn load_crate(&self, image: &'static PtxImage) -> Result<(), CudaError> {
        self.0.load_all(image)
    }

    /// Enqueues a kernel on a stream of this GPU's device. The first launch of a kernel also loads
    /// the kernel.
    ///
    /// Symmetric memory to which the arguments refer stays allocated until the kernel has ended. If
    /// the stream is being captured, the graph keeps the memory, the module and the context alive.
    /// [`wait`](Self::wait) returns an error if the kernel fails.
    ///
    /// Blocks that wait for each other need a cooperative launch. Two kernels on one device must
    /// not wait for each other, because the device may start one kernel only after the other kernel
    /// has ended.
    ///
    /// # Errors
    /// A call that returns one of the errors named here enqueues no kernel. [`CudaError::Misuse`]
    /// for a symmetric slice that is not inside a live allocation, and for a team that does not
    /// exist or has been destroyed. [`CudaError::Failed`] after a kernel has failed.
    /// [`CudaError::NoPtx`] if the kernel's crate has no PTX for the device. The call also returns
    /// the errors of `LoadedKernel::launch`.
    pub fn launch<A: KernelArgs>(
        &self,
        stream: &Arc<CudaStream>,
        kernel: &Kernel<A>,
        config: LaunchConfig,
        args: A,
    ) -> Result<(), CudaError> {
        let lookup = self.look_up(|lookup| args.visit(lookup))?;
        let inner = &*self.0;
        let loaded = inner.kernel(kernel.ptx(), kernel.name())?;
        let context = inner.context_address();
        let arguments = Arguments::new().with(&context).with_all(&args);
        // SAFETY: the kernel takes the context and these arguments, as the caller of `Kernel::new`
        // guaranteed. Data races only affect single words, whose values are then unspecified.
        unsafe { self.enqueue(stream, &loaded, config, &arguments, lookup) }
    }

    /// Like [`launch`](Self::launch), but for a kernel whose arguments are type-erased.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch).
    pub(crate) fn launch_bound(
        &self,
        stream: &Arc<CudaStream>,
        kernel: &dyn BoundKernel,
        config: LaunchConfig,
    ) -> Result<(), CudaError> {
        let lookup = self.look_up(|lookup| kernel.visit(lookup))?;
        let inner = &*self.0;
        let loaded = inner.kernel(kernel.ptx(), kernel.name())?;
        let context = inner.context_address();
        let mut arguments = Some(Arguments::new().with(&context));
        kernel.arguments(&mut |address, bytes, alignment| {
            // SAFETY: the arguments are values of the kernel's parameters. They are stored in
            // `kernel`, which is borrowed until the launch returns.
            arguments = arguments.take().map(|list| unsafe { list.with_raw(address, bytes, alignment) });
        });
        let arguments = arguments.unwrap_or_default();
        // SAFETY: as in `launch`.
        unsafe { self.enqueue(stream, &loaded, config, &arguments, lookup) }
    }

    /// Like [`launch`](Self::launch), but for a kernel that the caller has loaded, for example a
    /// CUDA C++ kernel that includes `peerweave.cuh`.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch).
    ///
    /// # Safety
    /// The first parameter of the kernel must be the address of a
    /// [`KernelContext`](peerweave_types::KernelContext) of this version of Peerweave. The other
    /// parameters must be exactly the types of `args`, by value. The kernel must access only memory
    /// of the context and of the arguments.
    pub unsafe fn launch_loaded<A: KernelArgs>(
        &self,
        stream: &Arc<CudaStream>,
        kernel: &LoadedKernel,
        config: LaunchConfig,
        args: A,
    ) -> Result<(), CudaError> {
        let lookup = self.look_up(|lookup| args.visit(lookup))?;
        let context = self.0.context_address();
        let arguments = Arguments::new().with(&context).with_all(&args);
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.enqueue(stream, kernel, config, &arguments, lookup) }
    }

    /// Looks up the memory and the teams to which kernel arguments refer. Fails if symmetric memory
    /// or a team does not exist, or if a kernel has failed earlier.
    fn look_up(&self, visit: impl FnOnce(&mut Lookup<'_>)) -> Result<Lookup<'_>, CudaError> {
        let inner = &*self.0;
        if let Some(failure) = &*inner.failed() {
            return Err(CudaError::Failed { call: CALL, failure: failure.clone() });
        }
        let mut lookup = Lookup { inner, blocks: Vec::new(), locals: Vec::new(), teams: Vec::new(), refused: None };
        visit(&mut lookup);
        lookup.refused.take().map_or(Ok(lookup), Err)
    }

    /// Enqueues a loaded kernel with its arguments.
    ///
    /// # Safety
    /// As for [`launch_loaded`](Self::launch_loaded). `lookup` contains the memory and the teams to
    /// which the arguments refer.
    unsafe fn enqueue(
        &self,
        stream: &Arc<CudaStream>,
        loaded: &LoadedKernel,
        config: LaunchConfig,
        arguments: &Arguments<'_>,
        lookup: Lookup<'_>,
    ) -> Result<(), CudaError> {
        let inner = &*self.0;
        let tables = inner.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let mut keep: Vec<Keep> = Vec::new();
        let capturing = is_capturing(stream)?;
        if capturing {
            keep.extend(tables.keep());
            keep.push(inner.report.keep());
            keep.extend(lookup.blocks.iter().filter_map(|block| block.keep()));
            keep.extend(lookup.locals.iter().filter_map(|memory| memory.keep()).map(|(_, keep)| keep));
            keep.extend(lookup.teams.iter().map(|team| Arc::<Members>::clone(team) as Keep));
        }
        inner.heap.note_multicast(stream, capturing.then_some(&mut keep));
        lookup.teams.iter().for_each(|team| team.note(stream));
        tables.note(stream);
        inner.report.note(stream);
        lookup.blocks.iter().for_each(|block| block.note(stream));
        lookup.locals.iter().for_each(|memory| drop(memory.read(stream)));
        // SAFETY: the caller guarantees that the kernel takes these arguments. Their memory is
        // recorded with the stream, or kept by the graph.
        unsafe { loaded.launch_into(stream, &config, arguments, capturing.then_some(keep)) }?;
        Ok(())
    }
}
