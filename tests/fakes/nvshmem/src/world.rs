//! The job that this process is a PE of.
//!
//! Not in this module: how it starts and ends (`init`). Invariant: there is at most one; who asks
//! for it while there is none ends the process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::call;
use crate::control::Control;
use crate::log::undefined;
use crate::meet::Team;
use crate::memory::Memory;
use crate::pending::Pending;

/// Everything of a job.
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
    /// Handles are not given twice, so that one that was destroyed is known.
    pub(crate) next_handle: AtomicI32,
    pub(crate) max_teams: usize,
    pub(crate) pending: Pending,
    /// What the host has sent over the network.
    pub(crate) sent: Pending,
    pub(crate) modules: Mutex<Vec<usize>>,
    /// How many of the PEs share a GPU with another.
    pub(crate) shares_gpu: bool,
    pub(crate) growth: Growth,
    /// Whether transfers were left to streams of the library's own that no quiet has waited for.
    pub(crate) left: AtomicBool,
}

/// How the heap becomes larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// Not at all: what does not fit is refused.
    Fixed,
    /// By so many bytes; where that fails all of it is unmapped, and the process ends at the
    /// barrier that follows.
    By(usize),
}

/// What there is.
pub(crate) enum State {
    Idle,
    /// The PEs have met, and what came after that failed: which PE this is, and of how many.
    Bootstrapped(i32, i32),
    /// With how often it was initialised.
    Live(Arc<World>, u32),
    Finalized,
}

pub(crate) static STATE: Mutex<State> = Mutex::new(State::Idle);

/// What there is.
pub(crate) fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The job, for a call that needs one.
pub(crate) fn live() -> Arc<World> {
    match &*state() {
        State::Live(world, _) => Arc::clone(world),
        State::Idle => undefined(&format!("{} before NVSHMEM was initialised", call::function())),
        State::Bootstrapped(..) => undefined(&format!("{}: nvshmem initialization failed, exiting", call::function())),
        State::Finalized => undefined(&format!("{} after nvshmemx_hostlib_finalize", call::function())),
    }
}

/// The job, if there is one.
pub(crate) fn peek() -> Option<Arc<World>> {
    match &*state() {
        State::Live(world, _) => Some(Arc::clone(world)),
        _ => None,
    }
}

/// This PE, if this process is one.
pub(crate) fn own_pe() -> Option<i32> {
    peek().map(|world| world.pe)
}

/// Those of a job that are known before its heap is.
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

    /// The streams of the library's own are waited for, by the host or by a stream; one that is
    /// being captured cannot.
    pub(crate) fn quiesce(&self, captured: bool) {
        if self.left.swap(false, Ordering::AcqRel) && captured {
            undefined(&format!(
                "{}: a graph would wait for a stream outside of it, on which an nbi transfer was left",
                call::function()
            ));
        }
    }

    /// Ends the process over a heap that could not grow, after which NVSHMEM has none.
    pub(crate) fn torn(&self, what: &str) {
        if let Growth::By(step) = self.growth {
            undefined(&format!("{}: {what} (the heap grows by {step} bytes), and the heap is unmapped", call::function()));
        }
    }

    /// The memory, while its bytes are touched.
    pub(crate) fn memory(&self) -> RwLockReadGuard<'_, Memory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory, to change what is live.
    pub(crate) fn change_memory(&self) -> RwLockWriteGuard<'_, Memory> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The teams of this PE.
    pub(crate) fn teams(&self) -> MutexGuard<'_, BTreeMap<i32, Arc<Team>>> {
        self.teams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A team that a call names.
    pub(crate) fn team_of(&self, handle: i32) -> Arc<Team> {
        if let Some(team) = self.teams().get(&handle) {
            return Arc::clone(team);
        }
        let was = (crate::control::FIRST_MADE as i32..self.next_handle.load(Ordering::Relaxed)).contains(&handle);
        let why = if was { "was destroyed" } else { "is none of this PE's" };
        undefined(&format!("{}: team {handle} {why}", call::function()))
    }

    /// Ends the process unless the job has such a PE.
    pub(crate) fn check_pe(&self, pe: i32) {
        if !(0..self.ranks).contains(&pe) {
            undefined(&format!("{}: PE {pe} of {}", call::function(), self.ranks));
        }
    }
}
