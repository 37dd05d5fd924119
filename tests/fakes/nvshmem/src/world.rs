//! The job to which this process belongs as a PE.
//!
//! `init` starts and ends it. Invariant: there is at most one job; a call that requires one while
//! there is none ends the process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::call;
use crate::control::Control;
use crate::log::undefined;
use crate::meet::Team;
use crate::memory::Memory;
use crate::pending::Pending;

/// The state of a job.
pub(crate) struct World {
    pub(crate) pe: i32,
    pub(crate) ranks: i32,
    pub(crate) device: i32,
    pub(crate) context: usize,
    pub(crate) processes: Vec<u32>,
    pub(crate) control: &'static Control,
    memory: RwLock<Memory>,
    pub(crate) team: Arc<Team>,
    pub(crate) teams: Mutex<BTreeMap<i32, Arc<Team>>>,
    /// The next team handle. Handles are never reused, so that a destroyed one is detected.
    pub(crate) next_handle: AtomicI32,
    pub(crate) max_teams: usize,
    pub(crate) pending: Pending,
    /// Transfers that the host has sent over the network.
    pub(crate) sent: Pending,
    pub(crate) modules: Mutex<Vec<usize>>,
    /// Whether a PE shares a GPU with another.
    pub(crate) shares_gpu: bool,
    pub(crate) growth: Growth,
    /// Whether transfers on internal streams are pending that no quiet has waited for.
    pub(crate) left: AtomicBool,
}

/// Growth of the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// The heap cannot grow: allocations that do not fit are refused.
    Fixed,
    /// The heap grows by this many bytes; if that fails, the whole heap is unmapped, and the
    /// process ends at the following barrier.
    By(usize),
}

/// The state of NVSHMEM in this process.
pub(crate) enum State {
    Idle,
    /// The PEs have connected, but a later step failed: number of this PE, and number of PEs.
    Bootstrapped(i32, i32),
    /// Initialized, with the number of initializations.
    Live(Arc<World>, u32),
    Finalized,
}

pub(crate) static STATE: Mutex<State> = Mutex::new(State::Idle);

/// Locks the state.
pub(crate) fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the job; ends the process if there is none.
pub(crate) fn live() -> Arc<World> {
    match &*state() {
        State::Live(world, _) => Arc::clone(world),
        State::Idle => undefined(&format!("{} was called before NVSHMEM was initialised", call::function())),
        State::Bootstrapped(..) => undefined(&format!("{}: nvshmem initialization failed, exiting", call::function())),
        State::Finalized => undefined(&format!("{} was called after nvshmemx_hostlib_finalize", call::function())),
    }
}

/// Returns the job, if there is one.
pub(crate) fn peek() -> Option<Arc<World>> {
    match &*state() {
        State::Live(world, _) => Some(Arc::clone(world)),
        _ => None,
    }
}

/// Returns the number of this PE, if this process is one.
pub(crate) fn own_pe() -> Option<i32> {
    peek().map(|world| world.pe)
}

/// The parts of a job that are known before its heap.
pub(crate) struct Parts {
    pub(crate) pe: i32,
    pub(crate) ranks: i32,
    pub(crate) device: i32,
    pub(crate) context: usize,
    pub(crate) processes: Vec<u32>,
    pub(crate) control: &'static Control,
    pub(crate) team: Arc<Team>,
    pub(crate) max_teams: usize,
    pub(crate) shares_gpu: bool,
    pub(crate) growth: Growth,
}

impl World {
    pub(crate) fn new(parts: Parts, memory: Memory) -> Self {
        let Parts { pe, ranks, device, context, processes, control, team, max_teams, shares_gpu, growth } = parts;
        Self {
            pe,
            ranks,
            device,
            context,
            processes,
            control,
            memory: RwLock::new(memory),
            team,
            teams: Mutex::default(),
            next_handle: AtomicI32::new(crate::control::FIRST_MADE as i32),
            max_teams,
            pending: Pending::default(),
            sent: Pending::default(),
            modules: Mutex::default(),
            shares_gpu,
            growth,
            left: AtomicBool::new(false),
        }
    }

    /// Waits for the internal streams, by the host or by a stream; a captured stream cannot wait
    /// for them.
    pub(crate) fn quiesce(&self, captured: bool) {
        if self.left.swap(false, Ordering::AcqRel) && captured {
            undefined(&format!("{}: a graph would wait for an uncaptured stream with a pending nbi transfer", call::function()));
        }
    }

    /// Ends the process because the heap could not grow and NVSHMEM has unmapped it.
    pub(crate) fn torn(&self, what: &str) {
        if let Growth::By(step) = self.growth {
            undefined(&format!("{}: {what} (the heap grows by {step} bytes), and the heap is unmapped", call::function()));
        }
    }

    /// Locks the memory for accesses to its bytes.
    pub(crate) fn memory(&self) -> RwLockReadGuard<'_, Memory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the memory for changes of the allocations.
    pub(crate) fn change_memory(&self) -> RwLockWriteGuard<'_, Memory> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the teams of this PE.
    pub(crate) fn teams(&self) -> MutexGuard<'_, BTreeMap<i32, Arc<Team>>> {
        self.teams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the team with a handle.
    pub(crate) fn team_of(&self, handle: i32) -> Arc<Team> {
        if let Some(team) = self.teams().get(&handle) {
            return Arc::clone(team);
        }
        let was = (crate::control::FIRST_MADE as i32..self.next_handle.load(Ordering::Relaxed)).contains(&handle);
        let why = if was { "was destroyed" } else { "is not a team of this PE" };
        undefined(&format!("{}: team {handle} {why}", call::function()))
    }

    /// Ends the process unless the job has such a PE.
    pub(crate) fn check_pe(&self, pe: i32) {
        if !(0..self.ranks).contains(&pe) {
            undefined(&format!("{}: PE {pe} does not exist in a job of {} PEs", call::function(), self.ranks));
        }
    }
}
