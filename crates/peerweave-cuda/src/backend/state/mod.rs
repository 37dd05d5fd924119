//! The state that the backend of one PE shares with its streams and tickets.
//!
//! ```text
//!  waits.rs       waits for events; after a failure, a wait ends early
//!  failures.rs    the first failure of a PE, and its reason      nccl.rs   failures of NCCL
//!  free.rs        streams and memory for later operations
//!  processes.rs   whether the processes of other PEs have ended
//! ```

mod failures;
mod free;
mod nccl;
mod processes;
mod waits;

pub(crate) use free::Lane;
pub(crate) use processes::Processes;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use peerweave_bootstrap::{Hosts, Rendezvous};
use peerweave_collectives::MAX_RANKS;
use peerweave_core::backend::{Caps, JobShape, Place, TeamId};
use peerweave_core::{Error, TeamName};
use peerweave_driver::{CudaContext, CudaStream, DeviceMemory, PrivateStream, deadline_after, wait_until};
use peerweave_types::{KernelTeam, Pe, SymOffset};

use self::free::Lists;
use crate::backend::error::{destroyed, finalized, interned, portable, unsupported, world};
use crate::backend::lock::lock;
use crate::backend::resources::{Combiners, Kernels, Pieces, Pinned, Pool};
use crate::backend::teams::{self, Calls, Span, TeamOf, Teams};
use crate::collective::{Collectives, CollectivesOptions, Room};
use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::memory::Symmetric;
use crate::nccl::Entry;
use crate::route::Routes;

/// Time for which a wait of the host continues after the deadline. Kernels end at the deadline, and
/// can report their failure in this time.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// A handle of the GPU, with the loaded kernels of this backend. Each call holds a clone of this
/// handle while it uses the GPU.
#[derive(Clone)]
pub(crate) struct Live {
    gpu: Gpu,
    pub(crate) kernels: Arc<Kernels>,
}

impl Deref for Live {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.gpu
    }
}

/// The parts of [`State`] that collectives need: staging memory, routes, NCCL, and records of
/// calls.
pub(crate) struct Memory {
    /// Staging memory of every team except the team of all PEs. `None` if no other team can exist,
    /// or if the heap has no room for the memory. Also `None` on NVSHMEM's heap if this PE does not
    /// map the memory of all other PEs.
    pub(crate) rooms: Option<Symmetric<u8>>,
    pub(crate) rooms_options: CollectivesOptions,
    pub(crate) routes: Arc<Routes>,
    pub(crate) nccl: Entry,
    /// For each PE of the job: the records of the collectives that the PE has begun. `None` if the
    /// job has only one PE or runs on several hosts, or if NVSHMEM has allocated the symmetric
    /// heap.
    pub(crate) calls: Option<Calls>,
    /// Shows for each other PE whether its process has ended. `None` if the field `calls` is
    /// `None`.
    pub(crate) processes: Option<Processes>,
}

/// The state of one PE, which its backend, streams and tickets share.
pub(crate) struct State {
    /// The GPU; `None` after finalize.
    gpu: RwLock<Option<Live>>,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) rendezvous: Mutex<Option<Arc<Rendezvous>>>,
    /// The rendezvous of the launcher's job, if `shrink` has created this world; otherwise `None`.
    /// The process stays connected to this rendezvous, so that the launcher sees that the process
    /// continues.
    pub(crate) launcher: Mutex<Option<Arc<Rendezvous>>>,
    pub(crate) job: JobShape,
    pub(crate) caps: Caps,
    pub(crate) deadline: Duration,
    /// Address at which this device maps each PE's heap; 0 for a heap that is not mapped.
    pub(crate) bases: Box<[u64]>,
    pub(crate) heap_bytes: u64,
    pub(crate) allocations: Mutex<BTreeMap<u64, Symmetric<u8>>>,
    pub(crate) teams: Teams,
    /// Counter that distinguishes a new team from earlier teams with the same team number. Each
    /// split sets the counters of all ranks of the parent team to the same value: their largest old
    /// value, plus 1. The id of the new team contains this value.
    pub(crate) splits: Mutex<u32>,
    /// Lock that each call of `team_of` holds. So only one thread of this PE at a time creates a
    /// team from a list of members.
    pub(crate) making: Mutex<()>,
    /// The records of the collectives that each PE of the job has begun. For the cases in which
    /// this field is `None`, see [`Memory::calls`].
    pub(crate) calls: Option<Calls>,
    /// Watches of the processes of other PEs. `None` if the field `calls` is `None`.
    pub(crate) processes: Option<Processes>,
    /// The route table, with the algorithms that the caller has chosen for collectives.
    pub(crate) routes: Arc<Routes>,
    pub(crate) nccl: Entry,
    /// The host on which each PE runs.
    pub(crate) hosts: Hosts,
    /// Stream for messages to and from other hosts. They run at the same time as messages within
    /// this host. `None` until the first use.
    pub(crate) between_hosts: Mutex<Option<PrivateStream>>,
    /// The kernels that combine operands of teams on several hosts.
    pub(crate) combiners: Combiners,
    /// One allocation, which contains the staging memory of all teams except the team of all PEs.
    /// For the cases in which this field is `None`, see [`Memory::rooms`].
    rooms: Mutex<Option<Arc<Symmetric<u8>>>>,
    /// Options for the collectives of the teams whose staging memory is in `rooms`: all teams
    /// except the team of all PEs.
    rooms_options: CollectivesOptions,
    /// Stream by which the host reads and writes symmetric memory, one access at a time. `None`
    /// until the first use.
    pub(crate) access: Mutex<Option<PrivateStream>>,
    /// Free streams for blocking operations. Each operation takes one stream while it runs.
    idle: Mutex<Vec<Lane>>,
    pub(crate) slots: Arc<Pool>,
    /// Pool of pinned memory. An operation uses pinned memory in place of host memory of the
    /// caller.
    pinned: Pieces<Pinned>,
    /// Pool of empty lists, in which an operation stores its messages and results. A repeated
    /// operation reuses the allocations of these lists. Only operations that consist of messages
    /// need lists.
    lists: Mutex<Vec<Lists>>,
    /// Pool of device memory that operations use for intermediate data.
    pub(crate) scratch: Pieces<DeviceMemory<u8>>,
    /// Whether `failure` is set. A thread can read this flag without the lock of `failure`.
    has_failure: AtomicBool,
    /// The first failure that this PE has recorded; `None` before the first failure.
    failure: Mutex<Option<Error>>,
}

impl State {
    /// Creates the state of a PE. `world` is the team of all PEs. `memory` has the staging memory,
    /// the routes and the other resources that collectives need.
    pub(crate) fn new(gpu: Gpu, caps: Caps, bases: Box<[u64]>, world: TeamOf, memory: Memory, kernels: Kernels) -> Self {
        let hosts = gpu.0.hosts.clone();
        let (rendezvous, context) = (Arc::clone(gpu.rendezvous()), Arc::clone(gpu.context()));
        let mapped = (0..).zip(&bases).filter(|(_, base)| **base != 0).map(|(pe, _)| Pe::new(pe));
        let job = JobShape { my_pe: gpu.pe(), n_pes: bases.len(), local: mapped.collect() };
        let Memory { rooms, rooms_options, routes, nccl, calls, processes } = memory;
        Self {
            deadline: gpu.deadline(),
            context,
            rendezvous: Mutex::new(Some(rendezvous)),
            launcher: Mutex::default(),
            processes,
            job,
            bases,
            heap_bytes: gpu.0.heap.bytes(),
            allocations: Mutex::default(),
            teams: Teams::new(world),
            splits: Mutex::default(),
            making: Mutex::default(),
            calls,
            routes,
            nccl,
            hosts,
            between_hosts: Mutex::default(),
            combiners: Combiners::default(),
            rooms: Mutex::new(rooms.map(Arc::new)),
            rooms_options,
            caps,
            access: Mutex::default(),
            idle: Mutex::default(),
            slots: Arc::default(),
            pinned: Pieces::default(),
            lists: Mutex::default(),
            scratch: Pieces::default(),
            has_failure: AtomicBool::new(false),
            failure: Mutex::default(),
            gpu: RwLock::new(Some(Live { gpu, kernels: Arc::new(kernels) })),
        }
    }

    /// Returns a handle of the GPU. Fails after finalize.
    pub(crate) fn gpu(&self, call: &'static str) -> Result<Live, Error> {
        let gpu = self.gpu.read().unwrap_or_else(PoisonError::into_inner);
        gpu.clone().ok_or_else(|| finalized(call))
    }

    /// Waits until no call of another thread uses the GPU. Then takes the GPU out of the state, so
    /// that the caller can end it. A call that uses the GPU holds a clone of [`Live`] until the
    /// call returns, at the latest after its deadline. Returns `None` if calls still use the GPU
    /// after `within`, or if the GPU was taken before. In every case, the state has no GPU
    /// afterwards.
    pub(crate) fn take_gpu(&self, within: Duration) -> Option<Gpu> {
        let is_unused = |live: &Live| Arc::strong_count(&live.kernels) == 1;
        let deadline = deadline_after(within);
        // The GPU stays in the state during this wait, so that waits of other threads end early if
        // a PE is lost.
        let is_idle = || self.gpu.read().unwrap_or_else(PoisonError::into_inner).as_ref().is_none_or(is_unused);
        let _ = wait_until(deadline, || Ok::<_, Error>(is_idle()));
        let live = self.gpu.write().unwrap_or_else(PoisonError::into_inner).take()?;
        // Another call may have cloned the handle since the check.
        let unused = wait_until(deadline, || Ok::<_, Error>(is_unused(&live)));
        unused.is_ok_and(|unused| unused).then_some(live.gpu)
    }

    pub(crate) fn me(&self) -> usize {
        self.job.my_pe.index()
    }

    pub(crate) fn world(&self) -> TeamName {
        world(self.job.n_pes)
    }

    /// Returns the team with this id. Fails if the team was destroyed, or after finalize.
    pub(crate) fn team(&self, call: &'static str, team: TeamId) -> Result<Arc<TeamOf>, Error> {
        self.teams.find(team).ok_or_else(|| if team == TeamId::WORLD { finalized(call) } else { destroyed(call) })
    }

    pub(crate) fn team_name(&self, team: TeamId) -> TeamName {
        if team == TeamId::WORLD {
            self.world()
        } else {
            self.teams.find(team).map_or(TeamName { id: team, size: 0 }, |team| team.name())
        }
    }

    /// Returns the device address of an operand in symmetric memory or device memory of this PE.
    pub(crate) fn address(&self, place: Place) -> u64 {
        match place {
            Place::Symmetric(at) => self.bases[self.me()] + at.0,
            Place::Device { address, .. } => address,
            Place::Private(_) => panic!("peerweave-cuda bug: an operand in host memory was not copied to pinned memory"),
        }
    }

    /// Returns the address at which this PE's device accesses offset `at` of the heap of `pe`.
    /// Fails if this PE does not map that heap.
    pub(crate) fn remote(&self, call: &'static str, pe: Pe, at: SymOffset) -> Result<u64, Error> {
        match self.bases[pe.index()] {
            0 => Err(self.out_of_reach(call, pe)),
            base => Ok(base + at.0),
        }
    }

    /// Returns the error of a call that needs access to the memory of `pe`, which is on another
    /// host.
    pub(crate) fn out_of_reach(&self, call: &'static str, pe: Pe) -> Error {
        let (theirs, mine) = (self.hosts.name_of(pe), self.hosts.name_of(self.job.my_pe));
        let why = format!(
            "{pe} is on host {theirs}, but this PE is on host {mine}: this backend has no one-sided operations \
             between hosts; use collectives, send and receive, or NVSHMEM through peerweave-nvshmem"
        );
        unsupported(call, interned(why))
    }

    pub(crate) fn portable(&self, call: &'static str) -> impl Fn(CudaError) -> Error {
        let team = self.world();
        move |error| portable(call, team, error)
    }

    /// Returns those `members` that are on the host of this PE, in the order of ranks.
    pub(crate) fn members_here(&self, members: &[Pe]) -> Vec<Pe> {
        let me = self.job.my_pe;
        members.iter().copied().filter(|pe| self.hosts.of(*pe) == self.hosts.of(me)).collect()
    }

    /// Creates the collective kernels of a new team. `sentinel` is the value that each 16-byte line
    /// of the staging memory holds until data arrives in the line. The first member on this host
    /// has chosen this value.
    pub(crate) fn kernels_of(
        &self,
        gpu: &Gpu,
        number: KernelTeam,
        members: &[Pe],
        sentinel: [u64; 2],
    ) -> Result<teams::Kernels, CudaError> {
        let is_mapped = |pe: &Pe| self.bases[pe.index()] != 0;
        let is_one = members.iter().all(is_mapped);
        let here = if is_one { members.to_vec() } else { self.members_here(members) };
        let is_served = here.len() <= MAX_RANKS && here.iter().all(is_mapped);
        let rooms = lock(&self.rooms).clone().filter(|_| is_served);
        let collectives = rooms.map(|memory| {
            let start = (number.index() as usize - 1) * self.rooms_options.heap_bytes() as usize;
            Collectives::in_room(gpu, &here, self.rooms_options, sentinel, Room { memory, start }, &self.routes)
        });
        let collectives = collectives.transpose()?;
        if is_one {
            return Ok(teams::Kernels::OneHost(collectives));
        }
        let me = members.iter().position(|pe| *pe == self.job.my_pe);
        let me = me.unwrap_or_else(|| panic!("peerweave-cuda bug: this PE is not a member of the team"));
        Ok(teams::Kernels::Hosts(Span::new(members, me, |pe| self.hosts.of(pe), collectives)))
    }

    /// Records that work on a stream may use any symmetric memory, so that the release of memory
    /// waits for this work. Used for operations that no stream of the backend lists as in flight.
    pub(crate) fn note_allocations(&self, stream: &Arc<CudaStream>) {
        lock(&self.allocations).values().for_each(|memory| memory.note(stream));
    }

    /// Drops the streams that the backend created for its own use. Also drops the teams, the pools
    /// of temporary memory, and the staging memory of collectives. Called by finalize.
    pub(crate) fn drop_streams(&self) {
        lock(&self.idle).clear();
        self.teams.clear();
        drop(lock(&self.rooms).take());
        self.pinned.clear();
        self.scratch.clear();
        *lock(&self.access) = None;
        *lock(&self.between_hosts) = None;
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State({} of {}, {})", self.job.my_pe, self.job.n_pes, self.caps.compute)
    }
}
