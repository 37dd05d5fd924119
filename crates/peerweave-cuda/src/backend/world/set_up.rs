//! Sets up the backend of one PE.

use std::sync::Arc;

use peerweave_bootstrap::{Job, Options, Rendezvous, end_process};
use peerweave_core::Error;
use peerweave_core::backend::{AccumulatorType, AfterFailure, Caps, NanRule, PrivateBuffers, ReductionOrder, TeamId};
use peerweave_driver::CudaContext;
use peerweave_types::{DType, Pe};

use super::memory::{options_of_others, options_of_world, teams_memory, within};
use super::options::DEFAULT_HEAP_BYTES;
use super::{Cuda, CudaOptions, routes};
use crate::backend::error::of_set_up;
use crate::backend::hosts;
use crate::backend::resources::Kernels;
use crate::backend::state::{Memory, Processes, State};
use crate::backend::teams::{Calls, Kernels as TeamKernels, Span, TeamOf};
use crate::collective::CollectivesOptions;
use crate::error::CudaError;
use crate::gpu::{Gpu, GpuOptions};
use crate::nccl::Entry;

impl Cuda {
    /// Joins a job. If [`CudaOptions::device`] is `None`, PE `i` of a machine uses device `i` of
    /// the devices that the PE's process sees. If the process sees only one device, the PE uses
    /// that device.
    ///
    /// # Collective
    /// All PEs of the job, with the same options. In a job of several PEs, each PE joins once: see
    /// [joining twice](Rendezvous#joining-twice).
    ///
    /// # Errors
    /// [`Error::Setup`] if there is no driver or no device, if the GPUs cannot access each other,
    /// or if this PE has joined before. Errors of the rendezvous, which name the missing PEs.
    pub fn join(job: &Job, options: &CudaOptions) -> Result<Arc<Self>, Error> {
        const CALL: &str = "Cuda::join";
        let setup = |error: CudaError| of_set_up(CALL, job.n_pes as usize, error);
        let context = match options.device {
            Some(ordinal) => peerweave_driver::context(ordinal),
            None => peerweave_driver::local_context(job.local_pe as usize),
        };
        let context = context.map_err(|error| setup(error.into()))?;
        let within = Options { deadline: options.deadline, ..Options::default() };
        let rendezvous = Arc::new(Rendezvous::join(job, within).map_err(|error| setup(error.into()))?);
        Self::join_by(&rendezvous, &context, options)
    }

    /// Like [`join`](Self::join), but uses an existing rendezvous and the device of `context`. The
    /// caller may use the rendezvous for other purposes too. [`CudaOptions::device`] is ignored.
    ///
    /// # Collective
    /// All PEs of the rendezvous, with the same options.
    ///
    /// # Errors
    /// As for [`join`](Self::join).
    pub fn join_by(rendezvous: &Arc<Rendezvous>, context: &Arc<CudaContext>, options: &CudaOptions) -> Result<Arc<Self>, Error> {
        let setup = |error: CudaError| of_set_up("Cuda::join", rendezvous.n_pes() as usize, error);
        let given = options;
        let heap_bytes = options.heap_bytes.unwrap_or(DEFAULT_HEAP_BYTES);
        let options = GpuOptions::new(heap_bytes).deadline(options.deadline);
        let world = CollectivesOptions::default().heap_bytes() as usize;
        // This is an upper bound for the size of the whole heap, because the memory of other teams
        // adds at most a third.
        let most = (heap_bytes + world) as u64 / 3 * 4;
        let others = options_of_others(most, options.teams.into()).heap_bytes() as usize;
        let heap_bytes = heap_bytes + world + others * options.teams as usize;
        let options = GpuOptions { heap_bytes, ..options };
        Self::with(Gpu::new(rendezvous, context, options).map_err(setup)?, given)
    }

    /// Creates the backend of a PE. The backend takes ownership of `gpu`: `World::finalize` calls
    /// [`Gpu::end`], which releases the GPU's memory and modules.
    ///
    /// This call loads the kernels of one-sided operations and of barriers. Without this call, the
    /// first use of such a kernel would load the kernel. That load could then wait for work on the
    /// device, such as a kernel that waits for another PE.
    ///
    /// # Collective
    /// All PEs of the GPU's rendezvous.
    ///
    /// # Errors
    /// [`Error::Setup`] if the kernels cannot be loaded, or if the heap has no room for the staging
    /// memory of collectives.
    pub fn new(gpu: Gpu) -> Result<Arc<Self>, Error> {
        Self::with(gpu, &CudaOptions::default())
    }

    /// Like [`new`](Self::new), but with `options`. Ignores the options for the memory, the
    /// deadline and the device, because `gpu` determines them.
    ///
    /// # Collective
    /// All PEs of the GPU's rendezvous, with the same options.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and [`Error::Setup`] for a route table that cannot be used.
    pub fn with(gpu: Gpu, options: &CudaOptions) -> Result<Arc<Self>, Error> {
        let n_pes = gpu.n_pes() as usize;
        let setup = |error: CudaError| of_set_up("Cuda::new", n_pes, error);
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
        if !is_mapped && gpu.0.hosts.len() < bases.len() {
            hosts::describe(&mut caps.reductions);
        }
        let routes = routes::agreed(&gpu, options).map_err(setup)?;
        // PEs of one host map each other's memory. On NVSHMEM's heap, the memory of some PEs may
        // not be mapped.
        let (made, rooms, rooms_options) = match is_mapped || gpu.0.heap.nvshmem().is_none() {
            true => teams_memory(&gpu, heap_bytes, max_teams as u64 - 1, &routes, options.max_blocks).map_err(setup)?,
            false => (None, None, CollectivesOptions::default()),
        };
        let of_world = within(options_of_world(heap_bytes), options.max_blocks);
        let taken = made.as_ref().map_or(0, |_| of_world.heap_bytes());
        let taken = taken + rooms.as_ref().map_or(0, |rooms| rooms.len() as u64);
        caps.heap_bytes -= taken as usize;
        let all: Vec<Pe> = (0..gpu.n_pes()).map(Pe::new).collect();
        let by_hosts = match is_mapped {
            true => TeamKernels::OneHost(made),
            false => {
                let here = gpu.0.hosts.pes(gpu.0.hosts.of(me)).count();
                let inside = made.filter(|made| made.members().len() == here);
                TeamKernels::Hosts(Span::new(&all, me.index(), |pe| gpu.0.hosts.of(pe), inside))
            }
        };
        let world = TeamOf::new(TeamId::WORLD, &all, me.index(), "all".to_owned(), by_hosts, None);
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
        Ok(Self::of(state, options.clone()))
    }
}
