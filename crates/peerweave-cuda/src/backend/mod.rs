//! The backend of the portable API for GPUs: one GPU for each PE, with its symmetric heap.
//!
//! ```text
//!  contract   the trait of peerweave-core
//!   queue      streams, events, operations on the calling thread
//!    enqueue    one operation on a CUDA stream: copies, and kernels of peerweave-stream-kernels
//!     collectives   collectives, sends and receives      by_nccl   collectives by NCCL
//!     functions  reductions by a function of the caller, on the host
//!     strides    operations with strides
//!     waits      waits for words, and tests of them
//!     staging    memory of the host passes through pinned memory
//!    kernels    the kernels of peerweave-stream-kernels      pools   memory for later operations
//!    ticket     how the outcome of an operation is read      slots   words for outcomes
//!   devices    memory of other libraries as operands         event   events of the driver
//!  agreement  calls that PEs make together on the host     calls   collectives, to compare them
//!   members    teams made by their members alone
//!   shrink     a job of the PEs that are left after a failure   processes   whether PEs have ended
//!  state      what all of these share      teams   the teams of this PE      routes   how collectives are carried out
//! ```
//!
//! Copies run on copy engines, in the order of their stream. Signals, waits, atomics, barriers and
//! operations on single elements are small kernels; `peerweave-stream-kernels` has the reasons. The
//! stream orders a signal after a put: the copy has ended when the signal's kernel starts, and the
//! kernel releases at system scope.

mod agreement;
mod by_nccl;
mod calls;
mod collectives;
mod contract;
mod devices;
mod enqueue;
mod error;
mod event;
mod functions;
mod kernels;
mod members;
mod norm;
#[cfg(target_os = "linux")]
mod pages;
#[cfg(not(target_os = "linux"))]
#[path = "pages_elsewhere.rs"]
mod pages;
mod pools;
mod processes;
mod queue;
mod routes;
mod shrink;
mod slots;
mod staging;
mod state;
mod strides;
mod teams;
mod ticket;
mod waits;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use peerweave_bootstrap::{Job, Options, Rendezvous, end_process};
use peerweave_collectives::MAX_RANKS;
use peerweave_core::Error;
use peerweave_core::backend::{
    AccumulatorType, AfterFailure, Caps, NanRule, PrivateBuffers, ReductionOrder, StreamBackend, TeamId,
};
use peerweave_driver::{CudaContext, CudaStream};
use peerweave_types::{DType, Pe};
use peerweave_vmm::{Misuse, VmmError};

pub use devices::{of_cudarc, on_device};

use crate::collective::{Collectives, CollectivesOptions};
use crate::gpu::{Gpu, GpuOptions};
use crate::memory::Symmetric;
use crate::nccl::Entry;
use crate::route::{Forced, Routes};
use calls::Calls;
use kernels::Kernels;
use processes::Processes;
use queue::CudaQueue;
use state::{Memory, State};
use teams::TeamOf;

/// Default size of the symmetric heap of each PE, in bytes.
const DEFAULT_HEAP_BYTES: usize = 1 << 30;

/// The backend for GPUs, as one PE uses it: `World::new(Cuda::new(gpu)?)`.
///
/// A PE has one GPU. PEs are processes on one machine, or threads with one GPU each. A table in the
/// README of this crate lists the implemented operations.
pub struct Cuda {
    state: Arc<State>,
    options: CudaOptions,
}

/// Returns the number of GPUs that this process sees.
///
/// # Errors
/// The driver was not found, or it reports no GPUs.
pub fn visible_gpus() -> Result<usize, crate::CudaError> {
    Ok(peerweave_driver::Driver::get()?.device_count()?)
}

/// Settings of the backend for GPUs. All PEs of a job pass the same values, except for `device`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaOptions {
    /// Deadline of every wait for which the call sets none. Default: 60 s.
    pub deadline: Duration,
    /// Size of the symmetric heap of each PE in bytes. Default: 1 GiB. The backend allocates more
    /// for collectives: a quarter more than the default.
    pub heap_bytes: Option<usize>,
    /// The device of this PE, by its ordinal in this process; may differ among PEs. Default: as
    /// [`Cuda::join`] says. PEs that share a device take turns on it, so each wait of a kernel for
    /// another PE takes milliseconds: for tests on machines with few GPUs.
    pub device: Option<usize>,
    /// File with the table of routes, which `peerweave tune` writes. Default: the built-in table of
    /// the GPUs' architecture.
    pub route_table: Option<PathBuf>,
    /// Ways to carry out collectives, which replace those of the table: for measurements.
    pub forced: Forced,
    /// Maximum number of blocks of a kernel of a collective, and so of multiprocessors that it
    /// uses. Default: 256. Applies to every team.
    pub max_blocks: Option<u32>,
    /// Whether NCCL may carry out collectives of the team of all PEs, where the table says that it
    /// is faster and its results have the same bits. Default: no. Where NCCL is missing or cannot
    /// be used, own kernels carry out everything, and [`Cuda::explain`] says why.
    pub nccl: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        let deadline = Duration::from_secs(60);
        Self {
            deadline,
            heap_bytes: None,
            device: None,
            route_table: None,
            forced: Forced::default(),
            max_blocks: None,
            nccl: false,
        }
    }
}

/// The collectives of the team of all PEs, the staging memory of other teams, and the options with
/// which each of these teams uses its part.
type TeamsMemory = (Option<Collectives>, Option<Symmetric<u8>>, CollectivesOptions);

/// Creates the collectives of the team of all PEs, and staging memory for `teams` other teams;
/// `None` if the heap has no room.
fn teams_memory(
    gpu: &Gpu,
    heap_bytes: u64,
    teams: u64,
    routes: &Arc<Routes>,
    max_blocks: Option<u32>,
) -> Result<TeamsMemory, crate::CudaError> {
    /// Returns `None` if the heap has no room, which is then so on every PE.
    fn room<T>(made: Result<T, crate::CudaError>) -> Result<Option<T>, crate::CudaError> {
        match made {
            Err(crate::CudaError::Vmm(VmmError::Misuse(Misuse::Exhausted { .. }))) => Ok(None),
            made => made.map(Some),
        }
    }
    let options = teams::within(teams::options_of_others(heap_bytes, teams), max_blocks);
    let world = match gpu.n_pes() as usize <= MAX_RANKS {
        true => room(Collectives::world_by(gpu, teams::within(teams::options_of_world(heap_bytes), max_blocks), routes))?,
        false => None,
    };
    let rooms = if teams == 0 { None } else { room(gpu.alloc((teams * options.heap_bytes()) as usize))? };
    Ok((world, rooms, options))
}

impl Cuda {
    /// Joins a job. Without [`CudaOptions::device`] the PEs of a machine use its GPUs in order: PE
    /// `i` of the machine uses device `i` of the devices that its process sees, or device 0 if its
    /// process sees only one.
    ///
    /// # Collective
    /// All PEs of the job, with the same options.
    ///
    /// # Errors
    /// [`Error::Setup`] without a driver or a device, or if the GPUs cannot access each other;
    /// errors of the rendezvous, which name the missing PEs.
    pub fn join(job: &Job, options: &CudaOptions) -> Result<Arc<Self>, Error> {
        const CALL: &str = "Cuda::join";
        let setup = |error: crate::CudaError| Error::setup(CALL, error);
        let context = match options.device {
            Some(ordinal) => peerweave_driver::context(ordinal),
            None => peerweave_driver::local_context(job.local_pe as usize),
        };
        let context = context.map_err(|error| setup(error.into()))?;
        let within = Options { deadline: options.deadline, ..Options::default() };
        let rendezvous = Arc::new(Rendezvous::join(job, within).map_err(|error| setup(error.into()))?);
        Self::join_by(&rendezvous, &context, options)
    }

    /// Joins like [`join`](Self::join), as the PEs of a rendezvous, which the caller may use for
    /// other purposes too. [`CudaOptions::device`] is not used.
    ///
    /// # Collective
    /// All PEs of the rendezvous, with the same options.
    ///
    /// # Errors
    /// As for [`join`](Self::join).
    pub fn join_by(rendezvous: &Arc<Rendezvous>, context: &Arc<CudaContext>, options: &CudaOptions) -> Result<Arc<Self>, Error> {
        let setup = |error: crate::CudaError| Error::setup("Cuda::join", error);
        let given = options;
        let heap_bytes = options.heap_bytes.unwrap_or(DEFAULT_HEAP_BYTES);
        let options = GpuOptions::new(heap_bytes).deadline(options.deadline);
        let world = CollectivesOptions::default().heap_bytes() as usize;
        // Of the whole heap, which is at most a third larger than the rest of it.
        let most = (heap_bytes + world) as u64 / 3 * 4;
        let others = teams::options_of_others(most, options.teams.into()).heap_bytes() as usize;
        let heap_bytes = heap_bytes + world + others * options.teams as usize;
        let options = GpuOptions { heap_bytes, ..options };
        Self::with(Gpu::new(rendezvous, context, options).map_err(setup)?, given)
    }

    /// Creates the backend on a GPU of a job. The world ends the GPU. Loads the backend's kernels
    /// now, because a later load may wait for work of the device, such as a kernel that waits for
    /// another PE.
    ///
    /// # Collective
    /// All PEs of the GPU.
    ///
    /// # Errors
    /// [`Error::Setup`] if the kernels cannot be loaded, or the heap has no room for the staging
    /// memory of collectives.
    pub fn new(gpu: Gpu) -> Result<Arc<Self>, Error> {
        Self::with(gpu, &CudaOptions::default())
    }

    /// Creates the backend like [`new`](Self::new), with options for its routes. Memory, deadline
    /// and device are those of the GPU.
    ///
    /// # Collective
    /// All PEs of the GPU, with the same options.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and [`Error::Setup`] for a route table that cannot be used.
    pub fn with(gpu: Gpu, options: &CudaOptions) -> Result<Arc<Self>, Error> {
        let setup = |error| Error::setup("Cuda::new", error);
        let watched = gpu.rendezvous().when_aborted(|aborted| end_process(aborted.code));
        watched.map_err(|error| setup(error.into()))?;
        let kernels = Kernels::load(&gpu).map_err(setup)?;
        gpu.barrier("backend/loaded").map_err(setup)?;
        let (inner, me) = (&*gpu.0, gpu.pe());
        let base = |pe| inner.heap.entry(me, Pe::new(pe), 0, false).map(|entry| entry.base);
        let bases = (0..gpu.n_pes()).map(base).collect::<Result<Box<[u64]>, _>>().map_err(setup)?;
        let heap_bytes = inner.heap.bytes();
        let max_teams = inner.teams.numbers().len();
        let mut caps = Caps::new(heap_bytes as usize, max_teams, format!("device {}, {}", gpu.context().ordinal(), gpu.arch()));
        caps.device = Some(gpu.context().ordinal() as u32);
        caps.private_buffers = PrivateBuffers::Staged;
        caps.after_failure = AfterFailure::PoisonsTeam;
        caps.reduce_functions = true;
        caps.max_align_bytes = inner.heap.max_alignment_bytes();
        caps.reductions = Caps::reductions_with(|reduction| {
            reduction.order = ReductionOrder::Rank;
            reduction.same_bits = true;
            reduction.nan = NanRule::IgnoredByMinMax;
            if matches!(reduction.dtype, DType::F16 | DType::BF16) {
                reduction.accumulator = AccumulatorType::F32RoundedOnce;
            }
        });
        let is_mapped = !bases.contains(&0);
        let routes = routes::agreed(&gpu, options).map_err(setup)?;
        let (made, rooms, rooms_options) = match is_mapped {
            true => teams_memory(&gpu, heap_bytes, max_teams as u64 - 1, &routes, options.max_blocks).map_err(setup)?,
            false => (None, None, CollectivesOptions::default()),
        };
        let of_world = teams::within(teams::options_of_world(heap_bytes), options.max_blocks);
        let taken = made.as_ref().map_or(0, |_| of_world.heap_bytes());
        let taken = taken + rooms.as_ref().map_or(0, |rooms| rooms.len() as u64);
        caps.heap_bytes -= taken as usize;
        let all: Vec<Pe> = (0..gpu.n_pes()).map(Pe::new).collect();
        let world = TeamOf::new(TeamId::WORLD, &all, me.index(), "all".to_owned(), made, None);
        let is_compared = is_mapped && all.len() > 1 && gpu.0.heap.nvshmem().is_none();
        let calls = is_compared.then(|| Calls::new(gpu.rendezvous(), max_teams)).transpose()?;
        if let Some(calls) = &calls {
            calls.begin(&world);
            gpu.barrier("backend/calls").map_err(setup)?;
        }
        let nccl = Entry::set_up(&gpu, options.nccl).map_err(setup)?;
        let processes = calls.is_some().then(|| Processes::of_all(gpu.rendezvous())).transpose().map_err(setup)?;
        let memory = Memory { rooms, rooms_options, routes, nccl, calls, processes };
        let state = State::new(gpu, caps, bases, world, memory, kernels);
        Ok(Arc::new(Self { state: Arc::new(state), options: options.clone() }))
    }

    /// Returns the context of this PE's GPU, for streams and memory of cudarc.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.state.context
    }

    /// Returns a stream of cudarc as a stream of this backend, for
    /// [`World::adopt_stream`](peerweave_core::World::adopt_stream). Work of the application and
    /// operations of Peerweave on the stream run in the order in which they were enqueued.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a stream of another device's context, and for a per-thread
    /// stream.
    ///
    /// ```no_run
    /// # fn f(world: &peerweave_core::World, stream: std::sync::Arc<peerweave_driver::CudaStream>) -> peerweave_core::Result<()> {
    /// let cuda = world.backend::<peerweave_cuda::Cuda>().expect("the world runs on GPUs");
    /// let stream = world.adopt_stream(cuda.wrap_stream(stream)?)?;
    /// world.team().barrier(&stream)?.wait()
    /// # }
    /// ```
    pub fn wrap_stream(&self, stream: Arc<CudaStream>) -> Result<Arc<dyn StreamBackend>, Error> {
        const CALL: &str = "wrap_stream";
        if stream.context().cu_ctx() != self.state.context.cu_ctx() {
            return Err(error::unsupported(CALL, "the stream belongs to another context, expected the context of this PE's GPU"));
        }
        peerweave_driver::refuse_per_thread(CALL, &stream).map_err(|error| error::driver(CALL, error))?;
        Ok(Arc::new(CudaQueue::wrap(&self.state, stream)?))
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cuda({:?})", self.state)
    }
}
