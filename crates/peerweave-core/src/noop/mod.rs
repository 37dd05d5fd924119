//! A backend without communication: it simulates a job of any size in one process, records the
//! calls that it gets, and completes operations immediately.
//!
//! This backend is for unit tests, examples and measurements of the API. One-sided operations,
//! signals and atomics access the symmetric memory of the simulated PEs. If a team has one rank,
//! its collectives work. If a team has several ranks, its collectives are only recorded. The
//! simulated PEs execute nothing, so this backend proves nothing about communication.
//!
//! Invariant: the heap is accessed only by atomic operations, inside live allocations. An operation
//! on other bytes of the heap panics.

mod data;
mod queue;

pub use queue::{NoopEvent, NoopStream};

use crate::arguments::shared_bytes::Reading;
use crate::backend::{
    AbortWord, Allocation, Backend, Caps, Collective, Direction, JobShape, Keep, LocalAddress, Op, Outcome, Place, PointToPoint,
    Shrunk, SplitCall, SplitPart, StreamBackend, TeamId, TeamRecord,
};
use crate::{Error, Result, TeamName};
use data::Heap;
use peerweave_types::{HeapGeometry, Pe, SymOffset};
use queue::Queue;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A call that a [`Noop`] backend has recorded.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Call {
    /// A call that runs an operation on the calling thread.
    Run(Op),
    /// A call that enqueues an operation.
    Submit(Op),
    /// A call that allocates symmetric memory.
    Allocate(Allocation),
    /// A call that releases the allocation at this offset.
    Release(SymOffset),
    /// A call that splits a team.
    Split {
        /// The parent team, which the call splits.
        parent: TeamId,
        /// The call that splits the team.
        call: SplitCall,
        /// The color and the key that this PE passes; `None` if this PE gets no team.
        part: Option<SplitPart>,
    },
    /// A call that creates a team of these PEs.
    TeamOf(Vec<Pe>),
    /// A call that destroys a team.
    Destroy(TeamId),
    /// A call that aborts the job with this exit code.
    Abort(u8),
    /// A call that shrinks the world.
    Shrink,
    /// A call that finalizes the job.
    Finalize,
}

/// A backend that simulates one PE of a job in this process, without communication, and records the
/// calls that it gets.
///
/// ```
/// use peerweave::backend::Op;
/// use peerweave::noop::{Call, Noop};
/// use peerweave::{Rank, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let noop = Noop::new(0, 4);
/// let world = World::builder().backend(noop.clone()).build()?;
/// let x = world.alloc::<u8>(16)?;
/// noop.take_calls();
/// world.team().put_blocking(&[7; 16], &x, Rank::new(3))?;
/// let [Call::Run(Op::Put(put))] = noop.take_calls()[..] else { panic!() };
/// assert_eq!((put.pe.get(), put.bytes), (3, 16));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Noop {
    me: Weak<Self>,
    job: JobShape,
    caps: Caps,
    heap: Heap,
    recording: AtomicBool,
    inert: AtomicBool,
    /// Whether the next blocking operation fails with a timeout: see [`Noop::time_out_next`].
    late_next: AtomicBool,
    aborted: AbortWord,
    state: Mutex<State>,
    queue: Queue,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<Call>,
    /// The start and the size in bytes of each live allocation.
    live: BTreeMap<u64, u64>,
    /// The members of each team, by team number; `None` for numbers that no team has.
    teams: Vec<Option<Vec<Pe>>>,
    /// The members of the team that the next split creates. If `None`, the new team has the same
    /// members as the team that is split.
    next_members: Option<Vec<Pe>>,
    /// The PEs that the next shrink keeps; `None` for all PEs.
    survivors: Option<Vec<Pe>>,
    fail_next: Option<Error>,
    /// The error that the next copy between host memory and symmetric memory returns.
    fail_local: Option<Error>,
    /// The failure of each poisoned team, by team number.
    poisoned: BTreeMap<u32, Error>,
}

impl State {
    /// Adds a team with these members, and returns the number of the team: the lowest number that
    /// no team has. If all numbers are in use, the error names `call` as the call that failed.
    fn add_team(&mut self, call: &'static str, members: Vec<Pe>) -> Result<TeamId> {
        let free = self.teams.iter().position(Option::is_none).unwrap_or(self.teams.len());
        if free >= MAX_TEAMS {
            return Err(Error::TooManyTeams { call, max_teams: MAX_TEAMS });
        }
        if free == self.teams.len() {
            self.teams.push(None);
        }
        self.teams[free] = Some(members);
        Ok(TeamId(free as u32))
    }
}

/// The maximum number of teams that exist at the same time.
const MAX_TEAMS: usize = 64;

impl Noop {
    /// Returns the address of the offset `at` in the symmetric memory of `pe`. The result is a
    /// device address if `caps` names a device; otherwise, it is a host address.
    fn location(&self, pe: Pe, at: SymOffset) -> LocalAddress {
        let address = self.heap.address(pe, at);
        match self.caps.device {
            Some(ordinal) => LocalAddress::Device { address: address as u64, ordinal: ordinal as usize },
            None => LocalAddress::Host(address),
        }
    }

    /// Creates the backend of PE `my_pe` in a simulated job. The job has `n_pes` PEs on one
    /// machine, and a symmetric heap of 1 MiB per PE. The backend records the calls that it gets.
    ///
    /// # Panics
    /// Panics if `my_pe` is not below `n_pes`.
    pub fn new(my_pe: u32, n_pes: usize) -> Arc<Self> {
        Self::with_heap(my_pe, n_pes, 1 << 20)
    }

    /// Like [`Noop::new`], but with a heap of `heap_bytes` bytes per PE, rounded up to whole pages.
    ///
    /// # Panics
    /// Panics if `my_pe` is not below `n_pes`.
    pub fn with_heap(my_pe: u32, n_pes: usize, heap_bytes: usize) -> Arc<Self> {
        let heap_bytes = heap_bytes.next_multiple_of(Heap::PAGE);
        let mut caps = Caps::new(heap_bytes, MAX_TEAMS, "nothing");
        caps.reduce_functions = true;
        caps.max_align_bytes = Heap::align(heap_bytes);
        Self::with_caps(my_pe, n_pes, caps)
    }

    /// Like [`Noop::new`], but with the capabilities `caps`.
    ///
    /// # Panics
    /// Panics if `my_pe` is not below `n_pes`.
    pub fn with_caps(my_pe: u32, n_pes: usize, caps: Caps) -> Arc<Self> {
        assert!((my_pe as usize) < n_pes, "PE {my_pe} does not exist in a job of {n_pes} PEs");
        let all: Vec<_> = (0..n_pes as u32).map(Pe::new).collect();
        let job = JobShape { my_pe: Pe::new(my_pe), n_pes, local: all.clone() };
        let heap = Heap::new(n_pes, caps.heap_bytes.next_multiple_of(Heap::PAGE));
        let state = State { teams: vec![Some(all)], ..State::default() };
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            job,
            caps,
            heap,
            recording: AtomicBool::new(true),
            inert: AtomicBool::new(false),
            late_next: AtomicBool::new(false),
            aborted: AbortWord::default(),
            state: Mutex::new(state),
            queue: Queue::default(),
        })
    }

    /// Sets whether the backend records the calls that it gets.
    pub fn set_recording(&self, recording: bool) {
        self.recording.store(recording, Ordering::Relaxed);
    }

    /// Sets whether all operations return at once without any effect. This setting is for
    /// benchmarks of the code that calls a backend.
    pub fn set_inert(&self, inert: bool) {
        self.inert.store(inert, Ordering::Relaxed);
    }

    /// Returns the calls that have been recorded since the last call of this method.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.state().calls)
    }

    /// Sets the members of the team that the next split returns, in rank order. By default, the new
    /// team has all members of its parent team. A split cannot determine the members, because the
    /// other PEs are only simulated and pass no color to the split.
    pub fn next_split_gives(&self, members: impl IntoIterator<Item = u32>) {
        self.state().next_members = Some(members.into_iter().map(Pe::new).collect());
    }

    /// Sets the PEs that the next shrink keeps, including this PE. By default, a shrink keeps all
    /// PEs.
    pub fn set_survivors(&self, pes: impl IntoIterator<Item = u32>) {
        self.state().survivors = Some(pes.into_iter().map(Pe::new).collect());
    }

    /// Makes the next of these calls fail with `error`: an operation,
    /// [`World::team_of`](crate::World::team_of) or [`World::shrink`](crate::World::shrink).
    pub fn fail_next(&self, error: Error) {
        self.state().fail_next = Some(error);
    }

    /// Makes the next copy between host memory and symmetric memory fail with `error`. An example
    /// of such a copy is [`Symmetric::load`](crate::Symmetric::load).
    pub fn fail_next_access(&self, error: Error) {
        self.state().fail_local = Some(error);
    }

    /// Makes the next blocking operation fail with a timeout, as if its work were still running.
    /// The backend keeps the memory of the operation alive until the next [`Noop::run_all`].
    pub fn time_out_next(&self) {
        self.late_next.store(true, Ordering::Relaxed);
    }

    /// Poisons a team: the team's later collectives, sends and receives fail. Their errors contain
    /// `because`.
    pub fn poison(&self, team: TeamId, because: Error) {
        self.state().poisoned.insert(team.0, because);
    }

    /// Sets whether streams are captured. While streams are captured, their operations are added to
    /// a graph and do not run.
    pub fn capture_streams(&self, capture: bool) {
        self.queue.set_capture(capture);
    }

    /// Runs the operations of the graph, in the order in which they were captured.
    ///
    /// # Errors
    /// The first failure of an operation in the graph.
    pub fn replay(&self) -> Result<()> {
        self.queue.replay(|op| self.perform(op))
    }

    /// Destroys the captured graph, and drops the owners that keep the memory of its operations
    /// allocated.
    pub fn drop_graph(&self) {
        self.queue.drop_graph();
    }

    /// Sets whether operations stay pending in their streams until [`Noop::run_next`] or
    /// [`Noop::run_all`] runs them.
    pub fn hold_streams(&self, hold: bool) {
        self.queue.set_hold(hold);
    }

    /// Runs the oldest pending operation. Returns `false` if no operation is pending.
    pub fn run_next(&self) -> bool {
        self.queue.run_next(|op| self.perform(op))
    }

    /// Runs all pending operations. Then stops keeping alive the memory of operations that have
    /// timed out: see [`Noop::time_out_next`].
    pub fn run_all(&self) {
        while self.run_next() {}
        self.queue.end_late();
    }

    #[inline]
    fn is_inert(&self) -> bool {
        self.inert.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn record(&self, call: impl FnOnce() -> Call) {
        if self.recording.load(Ordering::Relaxed) {
            self.state().calls.push(call());
        }
    }

    fn members(&self, team: TeamId) -> Vec<Pe> {
        let state = self.state();
        state
            .teams
            .get(team.0 as usize)
            .and_then(Clone::clone)
            .unwrap_or_else(|| panic!("peerweave-core bug: team {team:?} does not exist"))
    }

    /// Panics if the `bytes` bytes at `at` do not lie in one live allocation.
    fn assert_live(&self, at: SymOffset, bytes: usize) {
        let live = self.state().live.range(..=at.0).next_back().is_some_and(|(&start, &len)| at.0 + bytes as u64 <= start + len);
        assert!(live || bytes == 0, "peerweave-core bug: {bytes} bytes at {at:?} are not allocated");
    }

    /// Returns the address of the `bytes` bytes at `at` in the symmetric memory of `pe`. Panics if
    /// these bytes are not allocated.
    fn at(&self, pe: Pe, at: SymOffset, bytes: usize) -> *mut u8 {
        assert!(pe.index() < self.job.n_pes, "peerweave-core bug: {pe} does not exist");
        if !self.is_inert() {
            self.assert_live(at, bytes);
        }
        self.heap.address(pe, at)
    }

    fn place(&self, place: Place, bytes: usize) -> *mut u8 {
        match place {
            Place::Symmetric(at) => self.at(self.job.my_pe, at, bytes),
            Place::Private(at) => at,
            // Simulated devices use host memory.
            Place::Device { address, .. } => std::ptr::with_exposed_provenance_mut(address as usize),
        }
    }

    /// Returns the `bytes` bytes at `place` as the source of a copy: [`Reading::Shared`] for
    /// symmetric memory, and [`Reading::Named`] for other memory.
    fn reading(&self, place: Place, bytes: usize) -> Reading {
        match place {
            Place::Symmetric(at) => Reading::Shared(self.at(self.job.my_pe, at, bytes)),
            Place::Private(at) => Reading::Named(at),
            Place::Device { .. } => Reading::Named(self.place(place, bytes)),
        }
    }

    fn perform(&self, op: &Op) -> Result<Outcome> {
        if self.is_inert() {
            return Ok(Outcome::Done);
        }
        if let Some(error) = self.state().fail_next.take() {
            return Err(error);
        }
        if let Op::Collective(Collective { team, .. }) | Op::PointToPoint(PointToPoint { team, .. }) = op
            && let Some(because) = self.team_failure(*team)
        {
            let call = match op {
                Op::Collective(op) => op.kind.name(),
                Op::PointToPoint(PointToPoint { direction: Direction::Receive, .. }) => "recv",
                _ => "send",
            };
            return Err(Error::Poisoned { call, team: self.team_name(*team), because: Arc::new(because) });
        }
        data::perform(self, op)
    }

    fn local_failure(&self) -> Result<()> {
        if self.is_inert() {
            return Ok(());
        }
        self.state().fail_local.take().map_or(Ok(()), Err)
    }

    fn team_name(&self, team: TeamId) -> TeamName {
        TeamName { id: team, size: self.members(team).len() }
    }

    fn out_of_memory(&self, call: &'static str, requested_bytes: usize, what: &'static str) -> Error {
        let used: u64 = self.state().live.values().sum();
        let available_bytes = self.heap.bytes().saturating_sub(used as usize);
        Error::OutOfMemory { call, requested_bytes, available_bytes, what }
    }
}

#[allow(unsafe_code)]
// SAFETY: [B1]: `data::perform` asserts that symmetric ranges lie in live allocations. It accesses
// as many bytes of private memory as the operation says, before `run` returns or while the queue
// holds the value of `keep`. [B2]: the heap is freed when the backend is dropped. [B3]: one thread
// executes each operation, and accesses to words are sequentially consistent. [B4]: all accesses to
// the heap are atomic. [B8]: owners of device memory are notified before a call is recorded.
unsafe impl Backend for Noop {
    fn name(&self) -> &'static str {
        "noop"
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn job(&self) -> &JobShape {
        &self.job
    }

    fn geometry(&self) -> Option<HeapGeometry> {
        Some(HeapGeometry {
            base: self.heap.address(Pe::new(0), SymOffset(0)) as u64,
            stride: self.heap.bytes() as u64,
            heap_start: 0,
            heap_bytes: self.heap.bytes() as u64,
            my_pe: self.job.my_pe.get(),
            n_pes: self.job.n_pes as u32,
        })
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn allocate(&self, request: &Allocation) -> Result<SymOffset> {
        self.record(|| Call::Allocate(*request));
        let align = request.align.max(64) as u64;
        let bytes = request.bytes as u64;
        let mut state = self.state();
        // First fit. Empty allocations take space too, so that offsets differ.
        let mut at = 0u64;
        for (&start, &len) in &state.live {
            if at + bytes.max(1) <= start {
                break;
            }
            at = (start + len.max(1)).next_multiple_of(align);
        }
        if at.checked_add(bytes.max(1)).is_none_or(|end| end > self.heap.bytes() as u64) {
            drop(state);
            return Err(self.out_of_memory("allocate", request.bytes, "the symmetric heap"));
        }
        state.live.insert(at, bytes);
        drop(state);
        if request.zeroed {
            for &pe in &self.job.local {
                self.heap.zero(pe, SymOffset(at), request.bytes);
            }
        }
        Ok(SymOffset(at))
    }

    fn release(&self, at: SymOffset) -> Result<()> {
        self.record(|| Call::Release(at));
        self.run_all();
        let removed = self.state().live.remove(&at.0);
        assert!(removed.is_some(), "peerweave-core bug: nothing is allocated at {at:?}");
        Ok(())
    }

    fn local(&self, at: SymOffset) -> LocalAddress {
        self.location(self.job.my_pe, at)
    }

    fn address_of(&self, pe: Pe, at: SymOffset) -> Option<LocalAddress> {
        Some(self.location(pe, at))
    }

    unsafe fn read_local(&self, at: SymOffset, into: *mut u8, bytes: usize) -> Result<()> {
        self.local_failure()?;
        let from = self.at(self.job.my_pe, at, bytes);
        // SAFETY: `self.at` checks that `from` lies in the heap; the caller guarantees the validity
        // of `into`.
        unsafe { crate::arguments::shared_bytes::read(from, into, bytes) }
        Ok(())
    }

    unsafe fn write_local(&self, at: SymOffset, from: *const u8, bytes: usize) -> Result<()> {
        self.local_failure()?;
        let to = self.at(self.job.my_pe, at, bytes);
        // SAFETY: `self.at` checks that `to` lies in the heap; the caller guarantees the validity
        // of `from`.
        unsafe { crate::arguments::shared_bytes::write(from, to, bytes) }
        Ok(())
    }

    fn team_split(&self, parent: TeamId, call: SplitCall, part: Option<SplitPart>) -> Result<Option<TeamRecord>> {
        self.record(|| Call::Split { parent, call, part });
        let all = self.members(parent);
        let mut state = self.state();
        let members = state.next_members.take().unwrap_or(all);
        if part.is_none() {
            return Ok(None);
        }
        let id = state.add_team(call.name(), members.clone())?;
        Ok(Some(TeamRecord { id, members }))
    }

    fn team_of(&self, members: &[Pe]) -> Result<TeamRecord> {
        self.record(|| Call::TeamOf(members.to_vec()));
        let mut state = self.state();
        if let Some(error) = state.fail_next.take() {
            return Err(error);
        }
        let id = state.add_team("team_of", members.to_vec())?;
        Ok(TeamRecord { id, members: members.to_vec() })
    }

    fn team_destroy(&self, team: TeamId) -> Result<()> {
        self.record(|| Call::Destroy(team));
        let ended = self.state().teams[team.0 as usize].take();
        assert!(ended.is_some() && team != TeamId::WORLD, "peerweave-core bug: {team:?} cannot be destroyed");
        Ok(())
    }

    fn stream(&self) -> Result<Arc<dyn StreamBackend>> {
        let backend = self.me.upgrade().expect("the backend lives while one of its methods runs");
        Ok(Arc::new(NoopStream::new(backend)))
    }

    fn team_failure(&self, team: TeamId) -> Option<Error> {
        self.state().poisoned.get(&team.0).cloned()
    }

    fn owns(&self, stream: &dyn StreamBackend) -> bool {
        let stream: &dyn Any = stream;
        stream.downcast_ref::<NoopStream>().is_some_and(|stream| stream.is_of(self))
    }

    unsafe fn run(&self, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Outcome> {
        if self.is_inert() {
            self.record(|| Call::Run(op.clone()));
            return Ok(Outcome::Done);
        }
        if self.caps.device.is_some() {
            keep().device_owners(&mut |owner| owner.before(None))?;
        }
        self.record(|| Call::Run(op.clone()));
        if self.late_next.load(Ordering::Relaxed) && self.late_next.swap(false, Ordering::Relaxed) {
            return Err(self.queue.leave_running(keep()));
        }
        self.perform(op)
    }

    fn abort(&self, code: u8) -> Error {
        self.record(|| Call::Abort(code));
        let (by, code) = self.aborted.abort(self.job.my_pe, code);
        Error::Aborted { by, code }
    }

    fn abort_word(&self) -> AbortWord {
        self.aborted.clone()
    }

    fn shrink(&self) -> Result<Shrunk> {
        self.record(|| Call::Shrink);
        let mut state = self.state();
        if let Some(error) = state.fail_next.take() {
            return Err(error);
        }
        let former = state.survivors.take().unwrap_or_else(|| (0..self.job.n_pes as u32).map(Pe::new).collect());
        let me = former.iter().position(|pe| *pe == self.job.my_pe).expect("this PE is one of the survivors");
        Ok(Shrunk { backend: Self::with_caps(me as u32, former.len(), self.caps.clone()), former })
    }

    fn finalize(&self) -> Result<()> {
        self.record(|| Call::Finalize);
        self.run_all();
        Ok(())
    }

    fn describe(&self) -> String {
        format!("pending operations: {}", self.queue.len())
    }
}
