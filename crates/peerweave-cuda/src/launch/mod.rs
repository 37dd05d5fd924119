//! Launches of typed kernels: arguments are checked, and the memory that they name is kept until
//! the kernel has ended.

mod wait;

use std::fmt;
use std::sync::{Arc, PoisonError};

use peerweave_device::launch::Kernel;
use peerweave_driver::launch::{Arguments, LaunchConfig, LoadedKernel};
use peerweave_driver::{CudaStream, DeviceBuffer as _, DeviceMemory, Keep, PrivateStream, is_capturing};
use peerweave_types::{ArgVisitor, Dim3, KernelArgs, KernelTeam, SymOffset};

use crate::error::{CudaError, misuse};
use crate::gpu::teams::Members;
use crate::gpu::{Gpu, Inner};
use crate::heap::Block;

/// A stream of a GPU of a job. Derefs to cudarc's stream, for everything else that is enqueued
/// there.
pub struct Stream {
    gpu: Gpu,
    stream: PrivateStream,
}

impl Stream {
    /// Enqueues a kernel: `grid` blocks of `block` threads. See [`Gpu::launch`].
    ///
    /// # Errors
    /// As [`Gpu::launch`].
    pub fn launch<A: KernelArgs>(
        &self,
        kernel: &Kernel<A>,
        grid: impl Into<Dim3>,
        block: impl Into<Dim3>,
        args: A,
    ) -> Result<(), CudaError> {
        self.launch_with(kernel, LaunchConfig::new(grid, block), args)
    }

    /// As [`launch`](Self::launch), with shared memory, or cooperative, or with a programmatic
    /// start.
    ///
    /// # Errors
    /// As [`Gpu::launch`].
    pub fn launch_with<A: KernelArgs>(&self, kernel: &Kernel<A>, config: LaunchConfig, args: A) -> Result<(), CudaError> {
        self.gpu.launch(&self.stream, kernel, config, args)
    }

    /// Waits until all work of the stream is done: see [`Gpu::wait`].
    ///
    /// # Errors
    /// As [`Gpu::wait`].
    pub fn wait(&self) -> Result<(), CudaError> {
        self.gpu.wait(&self.stream)
    }

    /// The GPU.
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

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?})", self.gpu)
    }
}

/// Looks the memory of arguments up.
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
                let expected = "a range inside one live allocation of this GPU's heap";
                self.refused.get_or_insert_with(|| misuse(CALL, "a symmetric slice", value, expected));
            }
        }
    }

    /// Memory that is not ours: whoever made the view promised that it stays.
    fn device(&mut self, address: u64, _: u64) {
        self.locals.extend(self.inner.local(address));
    }

    fn team(&mut self, team: KernelTeam) {
        match self.inner.teams.find(team) {
            _ if team == KernelTeam::WORLD => {}
            Some(members) => self.teams.push(members),
            None => {
                let expected = "a team of this GPU that was not destroyed";
                self.refused.get_or_insert_with(|| misuse(CALL, "a team", format!("number {}", team.index()), expected));
            }
        }
    }
}

impl Gpu {
    /// A new stream in the GPU's context. It waits for nothing of other streams.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream(&self) -> Result<Stream, CudaError> {
        Ok(Stream { gpu: self.clone(), stream: PrivateStream::new(self.context())? })
    }

    /// Loads the crate that a kernel belongs to, and the kernel, which its first launch would do
    /// otherwise. Compiling PTX takes seconds the first time, for which kernels of other PEs would
    /// wait: so load on all PEs, then meet in a [`barrier`](Self::barrier), then launch.
    ///
    /// # Errors
    /// [`CudaError::NoPtx`]; those of loading and linking.
    pub fn load<A: KernelArgs>(&self, kernel: &Kernel<A>) -> Result<LoadedKernel, CudaError> {
        self.0.kernel(kernel.ptx(), kernel.name())
    }

    /// Enqueues a kernel on a stream of this GPU's device. The first launch of a kernel loads it.
    ///
    /// Symmetric memory among the arguments stays allocated until the kernel has ended. On a stream
    /// that is being captured the graph keeps it, the module and the context. A failure of the
    /// kernel is an error of [`wait`](Self::wait).
    ///
    /// Blocks that wait for each other need a cooperative launch. Kernels that wait for other PEs
    /// must not wait for each other on one device: a kernel may begin only when another has ended.
    ///
    /// # Errors
    /// Before anything is enqueued: [`CudaError::Misuse`] for a symmetric slice that lies in no
    /// allocation, or a team that there is not (any more); [`CudaError::Failed`] after a kernel has
    /// failed; [`CudaError::NoPtx`]; those of `LoadedKernel::launch`.
    pub fn launch<A: KernelArgs>(
        &self,
        stream: &Arc<CudaStream>,
        kernel: &Kernel<A>,
        config: LaunchConfig,
        args: A,
    ) -> Result<(), CudaError> {
        let lookup = self.look_up(&args)?;
        let inner = &*self.0;
        let loaded = inner.kernel(kernel.ptx(), kernel.name())?;
        // SAFETY: the entry takes the context and these arguments, which `Kernel::new` promised;
        // races are among accesses of single words, whose values are then unspecified.
        unsafe { self.enqueue(stream, &loaded, config, args, lookup) }
    }

    /// As [`launch`](Self::launch), for a kernel that was loaded otherwise, such as one in CUDA C++
    /// over `peerweave.cuh`.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    ///
    /// # Safety
    /// The kernel takes the address of a [`KernelContext`](peerweave_types::KernelContext) of this
    /// version and then exactly these arguments by value, and accesses only memory that the context
    /// and the arguments give it.
    pub unsafe fn launch_loaded<A: KernelArgs>(
        &self,
        stream: &Arc<CudaStream>,
        kernel: &LoadedKernel,
        config: LaunchConfig,
        args: A,
    ) -> Result<(), CudaError> {
        let lookup = self.look_up(&args)?;
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(stream, kernel, config, args, lookup) }
    }

    /// The memory and the teams that arguments name; an error where one is not live, or a kernel
    /// has failed.
    fn look_up<A: KernelArgs>(&self, args: &A) -> Result<Lookup<'_>, CudaError> {
        let inner = &*self.0;
        if let Some(failure) = &*inner.failed() {
            return Err(CudaError::Failed { call: CALL, failure: failure.clone() });
        }
        let mut lookup = Lookup { inner, blocks: Vec::new(), locals: Vec::new(), teams: Vec::new(), refused: None };
        args.visit(&mut lookup);
        lookup.refused.take().map_or(Ok(lookup), Err)
    }

    /// # Safety
    /// As [`launch_loaded`](Self::launch_loaded); the memory that the arguments name is that of
    /// `lookup`.
    unsafe fn enqueue<A: KernelArgs>(
        &self,
        stream: &Arc<CudaStream>,
        loaded: &LoadedKernel,
        config: LaunchConfig,
        args: A,
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
        let context = tables.address();
        let arguments = Arguments::new().with(&context).with_all(&args);
        // SAFETY: the caller's promise; what the arguments refer to is noted on the stream, or kept
        // by the graph.
        unsafe { loaded.launch(stream, &config, &arguments, keep) }?;
        Ok(())
    }
}
