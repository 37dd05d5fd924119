//! The state that the backend of one PE shares with its streams and tickets.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use peerweave_bootstrap::Rendezvous;
use peerweave_collectives::MAX_RANKS;
use peerweave_core::backend::{Caps, JobShape, Place, TeamId};
use peerweave_core::{Error, PeerCause, TeamName, Timeout};
use peerweave_driver::launch::MappedWords;
use peerweave_driver::{CudaContext, CudaStream, DeviceMemory, PrivateStream, deadline_after, wait_until};
use peerweave_types::{KernelTeam, Pe, SymOffset};

use super::calls::Calls;
use super::error::{NAME, destroyed, driver, finalized, mismatch, portable, unsupported, world};
use super::event::Recorded;
use super::kernels::{self, Kernels};
use super::pools::{Pieces, class_of};
use super::processes::Processes;
use super::queue::Queue;
use super::slots::Pool;
use super::staging::{Pinned, Staged};
use super::teams::{TeamOf, Teams};
use crate::collective::{Collectives, CollectivesOptions, Message, Room};
use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::memory::Symmetric;
use crate::nccl::Entry;
use crate::route::Routes;

/// Interval at which a wait for an event queries the rendezvous for lost PEs.
const LOOK: Duration = Duration::from_millis(5);
/// Additional time for work to end after its own waits have reached their deadline.
pub(super) const GRACE: Duration = Duration::from_millis(500);

/// The messages of an operation, and those of their results that are staged.
pub(super) type Lists = (Vec<Message>, Vec<Staged>);

/// A stream for operations on calling threads, with an event for the end of each.
pub(super) struct Lane {
    pub(super) stream: PrivateStream,
    pub(super) event: Recorded,
}

/// The GPU until finalize, and the kernels of this backend, which are unloaded with it.
#[derive(Clone)]
pub(super) struct Live {
    gpu: Gpu,
    pub(super) kernels: Arc<Kernels>,
}

impl Deref for Live {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.gpu
    }
}

/// Symmetric memory through which collectives move data.
pub(super) struct Memory {
    /// Staging memory of the other teams; `None` if the heap has no room for it, or other PEs are
    /// not mapped.
    pub(super) rooms: Option<Symmetric<u8>>,
    pub(super) rooms_options: CollectivesOptions,
    pub(super) routes: Arc<Routes>,
    pub(super) nccl: Entry,
    /// Record of collective calls; `None` for a job of one PE, and if PEs are on several machines.
    pub(super) calls: Option<Calls>,
    /// The processes of the other PEs, where there is a record.
    pub(super) processes: Option<Processes>,
}

/// The state of one PE.
pub(super) struct State {
    /// The GPU; `None` after finalize.
    gpu: RwLock<Option<Live>>,
    pub(super) context: Arc<CudaContext>,
    pub(super) rendezvous: Mutex<Option<Arc<Rendezvous>>>,
    /// The rendezvous by which the process joined its launcher's job, in a world that was made by
    /// shrinking that of the launcher. The launcher sees by it that the process goes on.
    pub(super) launcher: Mutex<Option<Arc<Rendezvous>>>,
    pub(super) job: JobShape,
    pub(super) caps: Caps,
    pub(super) deadline: Duration,
    /// Address of each PE's heap on this device; 0 for a PE that is not mapped.
    pub(super) bases: Box<[u64]>,
    pub(super) heap_bytes: u64,
    pub(super) allocations: Mutex<BTreeMap<u64, Symmetric<u8>>>,
    pub(super) teams: Teams,
    /// Number of teams created by the PEs of any team of this PE. It distinguishes teams that reuse
    /// a number.
    pub(super) splits: Mutex<u32>,
    /// Locked while this PE makes a team with other PEs by their list.
    pub(super) making: Mutex<()>,
    /// Record of the collectives that each PE has begun.
    pub(super) calls: Option<Calls>,
    /// The processes of the other PEs.
    pub(super) processes: Option<Processes>,
    /// How collectives are carried out.
    pub(super) routes: Arc<Routes>,
    pub(super) nccl: Entry,
    /// Staging memory of all teams except the team of all PEs, one after the other.
    rooms: Mutex<Option<Arc<Symmetric<u8>>>>,
    /// Options for each team's part of `rooms`.
    rooms_options: CollectivesOptions,
    /// Stream for accesses of the host to symmetric memory, one at a time.
    pub(super) access: Mutex<Option<PrivateStream>>,
    /// Free streams for blocking operations; each operation takes one.
    idle: Mutex<Vec<Lane>>,
    pub(super) slots: Arc<Pool>,
    /// Pinned memory that replaces memory of the caller.
    pinned: Pieces<Pinned>,
    /// Empty lists for the messages of an operation and their results.
    lists: Mutex<Vec<Lists>>,
    /// Temporary device memory of operations.
    pub(super) scratch: Pieces<DeviceMemory<u8>>,
    pub(super) queues: Mutex<Vec<Weak<Queue>>>,
    /// Whether `failure` is set; can be read without the lock.
    has_failure: AtomicBool,
    /// The first failure of a kernel.
    failure: Mutex<Option<Error>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is complete before code can panic, so a poisoned lock still protects valid
    // values.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Creates the state of a PE. `world` is the team of all PEs, `memory` the memory of the
    /// collectives.
    pub(super) fn new(gpu: Gpu, caps: Caps, bases: Box<[u64]>, world: TeamOf, memory: Memory, kernels: Kernels) -> Self {
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
            rooms: Mutex::new(rooms.map(Arc::new)),
            rooms_options,
            caps,
            access: Mutex::default(),
            idle: Mutex::default(),
            slots: Arc::default(),
            pinned: Pieces::default(),
            lists: Mutex::default(),
            scratch: Pieces::default(),
            queues: Mutex::default(),
            has_failure: AtomicBool::new(false),
            failure: Mutex::default(),
            gpu: RwLock::new(Some(Live { gpu, kernels: Arc::new(kernels) })),
        }
    }

    /// Returns the GPU; an error after finalize.
    pub(super) fn gpu(&self, call: &'static str) -> Result<Live, Error> {
        let gpu = self.gpu.read().unwrap_or_else(PoisonError::into_inner);
        gpu.clone().ok_or_else(|| finalized(call))
    }

    /// Takes the GPU out of the state, to end it, when no call of another thread uses it any more.
    /// Such a call holds a clone of [`Live`] until it returns, at the latest after its deadline.
    /// Returns `None` if calls still use it after `within`, or if it was taken before.
    pub(super) fn take_gpu(&self, within: Duration) -> Option<Gpu> {
        let is_unused = |live: &Live| Arc::strong_count(&live.kernels) == 1;
        let deadline = deadline_after(within);
        // The GPU stays in the state meanwhile, so that waits end early if a PE is lost.
        let is_idle = || self.gpu.read().unwrap_or_else(PoisonError::into_inner).as_ref().is_none_or(is_unused);
        let _ = wait_until(deadline, || Ok::<_, Error>(is_idle()));
        let live = self.gpu.write().unwrap_or_else(PoisonError::into_inner).take()?;
        // A call may have taken a clone since.
        let unused = wait_until(deadline, || Ok::<_, Error>(is_unused(&live)));
        unused.is_ok_and(|unused| unused).then_some(live.gpu)
    }

    pub(super) fn me(&self) -> usize {
        self.job.my_pe.index()
    }

    pub(super) fn world(&self) -> TeamName {
        world(self.job.n_pes)
    }

    /// Returns a live team of this PE.
    pub(super) fn team(&self, call: &'static str, team: TeamId) -> Result<Arc<TeamOf>, Error> {
        self.teams.find(team).ok_or_else(|| if team == TeamId::WORLD { finalized(call) } else { destroyed(call) })
    }

    pub(super) fn team_name(&self, team: TeamId) -> TeamName {
        if team == TeamId::WORLD {
            self.world()
        } else {
            self.teams.find(team).map_or(TeamName { id: team, size: 0 }, |team| team.name())
        }
    }

    /// Returns the device address of memory of this PE.
    pub(super) fn address(&self, place: Place) -> u64 {
        match place {
            Place::Symmetric(at) => self.bases[self.me()] + at.0,
            Place::Device { address, .. } => address,
            Place::Private(_) => panic!("peerweave-cuda bug: memory of the host was not staged"),
        }
    }

    /// Returns the address on this device of symmetric memory of a PE.
    pub(super) fn remote(&self, call: &'static str, pe: Pe, at: SymOffset) -> Result<u64, Error> {
        match self.bases[pe.index()] {
            0 => Err(unsupported(call, "the PE is on another machine, and its memory is not mapped")),
            base => Ok(base + at.0),
        }
    }

    pub(super) fn portable(&self, call: &'static str) -> impl Fn(CudaError) -> Error {
        let team = self.world();
        move |error| portable(call, team, error)
    }

    /// Creates the collectives of a new team, with the sentinel of its first member. `None` if
    /// there is no staging memory for the team.
    pub(super) fn collectives_of(
        &self,
        gpu: &Gpu,
        number: KernelTeam,
        members: &[Pe],
        sentinel: [u64; 2],
    ) -> Result<Option<Collectives>, CudaError> {
        let rooms = lock(&self.rooms).clone();
        let is_served = members.len() <= MAX_RANKS && members.iter().all(|pe| self.bases[pe.index()] != 0);
        let Some(memory) = rooms.filter(|_| is_served) else { return Ok(None) };
        let start = (number.index() as usize - 1) * self.rooms_options.heap_bytes() as usize;
        Collectives::in_room(gpu, members, self.rooms_options, sentinel, Room { memory, start }, &self.routes).map(Some)
    }

    /// Returns pinned memory of at least `bytes` bytes that no operation uses.
    pub(super) fn pinned(&self, call: &'static str, bytes: usize) -> Result<Arc<Pinned>, Error> {
        let new = || MappedWords::new(&self.context, class_of(bytes) / size_of::<u32>()).map(Pinned::new);
        self.pinned.take(bytes, new).map_err(|error| driver(call, error))
    }

    /// Returns empty lists for the messages of an operation and their staged results.
    pub(super) fn take_lists(&self) -> Lists {
        lock(&self.lists).pop().unwrap_or_default()
    }

    /// Makes lists available to later operations.
    pub(super) fn give_back_lists(&self, mut messages: Vec<Message>, mut results: Vec<Staged>) {
        const MOST: usize = 16;
        messages.clear();
        results.clear();
        let mut lists = lock(&self.lists);
        if lists.len() < MOST {
            lists.push((messages, results));
        }
    }

    // ---- streams of this backend ----

    /// Takes a stream that no other operation uses, with its event.
    pub(super) fn take_lane(&self, call: &'static str, gpu: &Gpu) -> Result<Lane, Error> {
        let idle = lock(&self.idle).pop();
        if let Some(lane) = idle {
            return Ok(lane);
        }
        let made = || {
            let stream = PrivateStream::new(&self.context)?;
            let event = Recorded::new(&stream, false)?;
            Ok(Lane { stream, event })
        };
        let lane = made().map_err(|error| driver(call, error))?;
        kernels::note(gpu, &lane.stream);
        Ok(lane)
    }

    /// Returns a stream without work to the free streams.
    pub(super) fn give_back(&self, lane: Lane) {
        lock(&self.idle).push(lane);
    }

    /// Makes the release of symmetric memory wait for work on a stream for which no ticket waits.
    pub(super) fn note_allocations(&self, stream: &Arc<CudaStream>) {
        lock(&self.allocations).values().for_each(|memory| memory.note(stream));
    }

    /// Drops the streams without work, and the memory of collectives.
    pub(super) fn drop_streams(&self) {
        lock(&self.idle).clear();
        self.teams.clear();
        drop(lock(&self.rooms).take());
        self.pinned.clear();
        self.scratch.clear();
        *lock(&self.access) = None;
    }

    /// Returns the streams of the user that still exist.
    pub(super) fn live_queues(&self) -> Vec<Arc<Queue>> {
        let mut queues = lock(&self.queues);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.iter().filter_map(Weak::upgrade).collect()
    }

    // ---- failures ----

    /// Returns the first failure of a kernel of this PE. After a failure, teams run no operation.
    pub(super) fn failure(&self) -> Option<Error> {
        lock(&self.failure).clone()
    }

    /// Records the first failure of a kernel.
    pub(super) fn record(&self, error: Error) -> Error {
        lock(&self.failure).get_or_insert_with(|| error.clone());
        self.has_failure.store(true, Ordering::Release);
        error
    }

    /// Returns an error for an operation that needs kernels if a kernel has failed.
    pub(super) fn poisoned(&self, call: &'static str, team: TeamName) -> Result<(), Error> {
        if !self.has_failure.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.failure() {
            Some(because) => Err(Error::Poisoned { call, team, because: Arc::new(because) }),
            None => Ok(()),
        }
    }

    /// Compares the collectives that the ranks of a team have begun, as far as they are recorded.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if they differ; the error is then also recorded as a failure of this PE.
    pub(super) fn compare(&self, team: &TeamOf) -> Result<(), Error> {
        let found = self.calls.as_ref().and_then(|calls| calls.difference(team));
        found.map_or(Ok(()), |(pe, mine, theirs)| Err(self.record(mismatch(team.name(), pe, mine, theirs))))
    }

    /// Like [`compare`](Self::compare), for all teams.
    pub(super) fn compare_all(&self) -> Result<(), Error> {
        if self.calls.is_none() {
            return Ok(());
        }
        self.teams.try_each(|team| self.compare(team))
    }

    /// Returns the reason why a kernel failed.
    pub(super) fn kernel_failure(&self, call: &'static str, team: TeamName) -> Error {
        let reported = self.gpu(call).and_then(|gpu| gpu.0.ended(call).map_err(|error| portable(call, team, error)));
        // The wait may have timed out because ranks wait for each other in different calls.
        if let Err(error) = self.compare_all() {
            return error;
        }
        match (reported, self.shrinks()) {
            // Nobody has died, but a PE that the kernel waited for runs no more operations.
            (Err(Error::Kernel(_)), Some(pe)) => self.record(Error::Peer { call, team, pe, cause: PeerCause::Shrinks }),
            (reported, _) => self.failure_of(call, team, reported),
        }
    }

    fn failure_of(&self, call: &'static str, team: TeamName, reported: Result<(), Error>) -> Error {
        match reported {
            Err(error) => self.record(error),
            // An earlier failure has used the report.
            Ok(()) => match self.failure() {
                Some(because) => Error::Poisoned { call, team, because: Arc::new(because) },
                None => Error::system(call, std::io::Error::other("the kernel ended without an outcome or a report")),
            },
        }
    }

    /// Returns another PE that has called shrink, and runs no more operations of this world.
    pub(super) fn shrinks(&self) -> Option<Pe> {
        let calls = self.calls.as_ref()?;
        let others = (0..self.job.n_pes).filter(|pe| *pe != self.me());
        others.into_iter().find(|pe| calls.survivors(*pe).has_begun()).map(|pe| Pe::new(pe as u32))
    }

    /// Returns whether a kernel of this GPU has reported a failure.
    pub(super) fn has_failed(&self) -> bool {
        self.gpu(NAME).is_ok_and(|gpu| gpu.0.report.failure().is_some())
    }

    // ---- waits ----

    /// Waits until a stream has passed an event, at most for `within`. Returns whether the stream
    /// has passed it. If a PE is lost or a kernel fails during the wait, ends kernels that wait.
    pub(super) fn wait_for(&self, event: &Recorded, within: Duration) -> Result<bool, peerweave_driver::DriverError> {
        let mut looked = Instant::now();
        let mut aborted = false;
        wait_until(deadline_after(within), || {
            if event.is_complete()? {
                return Ok(true);
            }
            if !aborted && looked.elapsed() >= LOOK {
                looked = Instant::now();
                // After a failure, later kernels would wait for ranks that do not arrive.
                if let Ok(gpu) = self.gpu(NAME)
                    && (gpu.0.lost().is_some()
                        || self.shrinks().is_some()
                        || gpu.0.report.failure().is_some()
                        || self.compare_all().is_err())
                {
                    gpu.0.report.abort();
                    self.nccl.abort();
                    aborted = true;
                }
            }
            Ok(false)
        })
    }

    /// Returns the error of a wait that has reached its deadline.
    pub(super) fn timed_out(&self, call: &'static str, team: TeamName, waited: Duration) -> Error {
        Error::Timeout(Box::new(Timeout { call, team, waited, missing: Vec::new(), running: None }))
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State({} of {}, {})", self.job.my_pe, self.job.n_pes, self.caps.compute)
    }
}
