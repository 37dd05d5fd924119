//! Selects the backend that runs an example's kernels: CPU threads, or with `--gpu` one GPU for
//! each PE.
//!
//! With `--gpu` the examples use `peerweave_cuda::Gpu`, otherwise `peerweave::World`. The calls of
//! the two types differ only in their names. Other programs use one of the two types directly.

use peerweave::bootstrap::{Job, Options, Rendezvous};
use peerweave::{Element, World};
use peerweave_cuda::{Gpu, GpuOptions, LaunchConfig};
use peerweave_device::launch::Kernel;
use peerweave_types::{KernelArgs, Plain, SymSlice};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// Result of an example.
pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Bytes of symmetric heap on each GPU.
const HEAP_BYTES: usize = 16 << 20;

/// Maximum time of a wait on GPUs.
const DEADLINE: Duration = Duration::from_secs(20);

/// The job of this PE, on CPU threads or on a GPU.
pub enum KernelJob {
    /// CPU threads.
    Host {
        /// The job.
        world: World,
        /// The stream of launches.
        stream: peerweave::Stream,
    },
    /// A GPU.
    Gpu {
        /// The GPU and the job.
        gpu: Gpu,
        /// The stream of launches.
        stream: peerweave_cuda::Stream,
    },
}

/// Symmetric memory: elements at the same offset in the heap of every PE.
pub enum Memory<T: Element + Plain> {
    /// In memory that the PEs share.
    Host(peerweave::Symmetric<T>),
    /// In memory of the GPU.
    Gpu(peerweave_cuda::Symmetric<T>),
}

impl KernelJob {
    /// Joins the job that the environment describes. With the argument `--gpu` each PE uses the GPU
    /// with its index on this machine.
    ///
    /// # Errors
    /// Errors of the rendezvous and of the GPU. An error for an unknown argument.
    pub fn from_env() -> Outcome<Self> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => {
                let world = World::from_env()?;
                Ok(Self::Host { stream: world.stream()?, world })
            }
            ["--gpu"] => {
                let job = Job::from_env()?;
                let rendezvous = Arc::new(Rendezvous::join(&job, Options::default())?);
                let context = peerweave_driver::local_context(job.local_pe as usize)?;
                let gpu = Gpu::new(&rendezvous, &context, GpuOptions::new(HEAP_BYTES).deadline(DEADLINE))?;
                Ok(Self::Gpu { stream: gpu.stream()?, gpu })
            }
            _ => Err(format!("the arguments are {arguments:?}, expected no argument or --gpu").into()),
        }
    }

    /// Returns the number of this PE.
    pub fn my_pe(&self) -> u32 {
        match self {
            Self::Host { world, .. } => world.my_pe().get(),
            Self::Gpu { gpu, .. } => gpu.pe().get(),
        }
    }

    /// Returns the number of PEs.
    pub fn n_pes(&self) -> u32 {
        match self {
            Self::Host { world, .. } => world.n_pes() as u32,
            Self::Gpu { gpu, .. } => gpu.n_pes(),
        }
    }

    /// Allocates zeroed elements on every PE. Collective.
    ///
    /// # Errors
    /// Errors of the heap.
    pub fn alloc_zeroed<T: Element + Plain>(&self, len: usize) -> Outcome<Memory<T>> {
        Ok(match self {
            Self::Host { world, .. } => Memory::Host(world.alloc_zeroed(len)?),
            Self::Gpu { gpu, .. } => Memory::Gpu(gpu.alloc(len)?),
        })
    }

    /// Writes elements of this PE from index `first` on.
    ///
    /// # Errors
    /// An error if the range exceeds the memory. Errors of the driver.
    pub fn write<T: Element + Plain>(&self, memory: &Memory<T>, first: usize, values: &[T]) -> Outcome {
        match (self, memory) {
            (_, Memory::Host(memory)) => memory.slice(first..first + values.len())?.copy_from(values)?,
            (Self::Gpu { stream, .. }, Memory::Gpu(memory)) => memory.write(stream, first, values)?,
            (Self::Host { .. }, Memory::Gpu(_)) => {
                return Err("the memory is on a GPU, but the kernels of this job run on CPU threads".into());
            }
        }
        Ok(())
    }

    /// Returns the elements of this PE.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn read<T: Element + Plain>(&self, memory: &Memory<T>) -> Outcome<Vec<T>> {
        match (self, memory) {
            (_, Memory::Host(memory)) => Ok(memory.to_vec()?),
            (Self::Gpu { stream, .. }, Memory::Gpu(memory)) => Ok(memory.read(stream)?),
            (Self::Host { .. }, Memory::Gpu(_)) => {
                Err("the memory is on a GPU, but the kernels of this job run on CPU threads".into())
            }
        }
    }

    /// Runs a kernel on this PE with `blocks` blocks of `threads` threads, and waits until it has
    /// ended. Collective.
    ///
    /// # Errors
    /// Errors of the launch and of the kernel; both name the PE at fault.
    pub fn launch<A: KernelArgs + peerweave::LaunchArgs<A>>(
        &self,
        kernel: &Kernel<A>,
        blocks: u32,
        threads: u32,
        args: A,
    ) -> Outcome {
        match self {
            Self::Host { stream, .. } => stream.launch(kernel, blocks, threads, args)?.wait()?,
            Self::Gpu { gpu, stream } => {
                // The driver compiles the kernel on all PEs first. Otherwise, a PE that is ready
                // early would wait for the others inside its kernel.
                gpu.load(kernel)?;
                gpu.barrier("loaded")?;
                stream.launch_with(kernel, LaunchConfig::new(blocks, threads), args)?;
                stream.wait()?;
            }
        }
        Ok(())
    }

    /// Frees memory after the kernels of all PEs have ended. Collective.
    ///
    /// # Errors
    /// Errors of the heap.
    pub fn free<T: Element + Plain>(&self, memory: Memory<T>) -> Outcome {
        match (self, memory) {
            (_, Memory::Host(memory)) => memory.release()?,
            (Self::Gpu { gpu, .. }, Memory::Gpu(memory)) => gpu.free(memory)?,
            (Self::Host { .. }, Memory::Gpu(_)) => {
                return Err("the memory is on a GPU, but the kernels of this job run on CPU threads".into());
            }
        }
        Ok(())
    }

    /// Finalizes the job on this PE. Collective.
    ///
    /// # Errors
    /// An error if a PE does not call this function before the deadline.
    pub fn finish(self) -> Outcome {
        match self {
            Self::Host { world, stream } => {
                drop(stream);
                let report = world.finalize()?;
                if !report.is_clean() {
                    return Err(report.to_string().into());
                }
            }
            Self::Gpu { gpu, stream } => {
                let rendezvous = Arc::clone(gpu.rendezvous());
                drop((stream, gpu));
                if let Some(rendezvous) = Arc::into_inner(rendezvous) {
                    rendezvous.leave()?;
                }
            }
        }
        Ok(())
    }
}

impl<T: Element + Plain> Memory<T> {
    /// Returns the view of the elements that kernels take.
    pub fn slice(&self) -> SymSlice<T> {
        match self {
            Self::Host(memory) => memory.view(),
            Self::Gpu(memory) => memory.slice(),
        }
    }
}
