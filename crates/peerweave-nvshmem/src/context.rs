//! The caller's handle of the NVSHMEM that runs in this process, and what this process has of
//! NVSHMEM.
//!
//! What a context does is `ops` and `team`; how it starts and ends is `startup`.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use peerweave_driver::{CudaContext, CudaStream};
use peerweave_types::Pe;

use crate::comm::{Comm, Parts};
use crate::error::{DeadState, NvshmemError};
use crate::heap::Heap;
use crate::heap::limits::Limits;
use crate::library::{Nvshmem, Settings, Status};

/// NVSHMEM, running in this process. Handles of the same context are clones; it ends when the last
/// of them is given to [`finalize`](Self::finalize).
///
/// Dropping handles is local and ends nothing: a process that only drops its context leaves NVSHMEM
/// running, and [`current`](Self::current) finds it again.
pub struct Context {
    pub(crate) comm: Arc<Comm>,
    pub(crate) heap: Arc<Heap>,
    pub(crate) running: Arc<Running>,
}

/// What all handles of a context share.
pub(crate) struct Running {
    comm: Arc<Comm>,
    heap: Arc<Heap>,
    pub(crate) arguments: Arguments,
    handles: AtomicUsize,
}

/// By what PEs meet: a kind, and which of that kind as far as a number tells.
pub(crate) type Meeting = (&'static str, u64);

/// How the PEs met: what a second initialisation is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// By what: a rendezvous, an id, MPI, the launcher.
    pub(crate) way: &'static str,
    /// This PE and how many there are, where the way says so.
    pub(crate) place: Option<(u32, u32)>,
    /// Which id, rendezvous or communicator, as far as a number tells.
    pub(crate) which: u64,
    pub(crate) device: usize,
    pub(crate) settings: Settings,
}

impl Arguments {
    pub(crate) fn meeting(&self) -> Meeting {
        (self.way, self.which)
    }
}

/// What this process has of NVSHMEM [C1].
pub(crate) enum Life {
    /// Nothing.
    Idle,
    /// A thread initialises, by this.
    Starting(Meeting),
    /// A context.
    Live(Arc<Running>),
    /// A thread gives the last handle up.
    Ending(Arc<Running>),
    /// It cannot be started any more.
    Over(DeadState),
}

pub(crate) static LIFE: Mutex<Life> = Mutex::new(Life::Idle);

impl Running {
    pub(crate) fn alive(&self, call: &'static str) -> Result<(), NvshmemError> {
        self.comm.alive(call)
    }

    pub(crate) fn handles(&self) -> usize {
        self.handles.load(Ordering::Relaxed)
    }
}

impl Context {
    pub(crate) fn adopt(parts: Parts, arguments: Arguments) -> Self {
        let comm = Arc::new(Comm::new(parts));
        let heap = Arc::new(Heap::new(Arc::clone(&comm), Limits::of(&arguments.settings)));
        Self::handle(&Arc::new(Running { comm, heap, arguments, handles: AtomicUsize::new(0) }))
    }

    pub(crate) fn handle(running: &Arc<Running>) -> Self {
        running.handles.fetch_add(1, Ordering::Relaxed);
        let (comm, heap) = (Arc::clone(&running.comm), Arc::clone(&running.heap));
        Self { comm, heap, running: Arc::clone(running) }
    }

    /// Another handle of the context that runs in this process, if one does.
    pub fn current() -> Option<Self> {
        // In a fork, a thread that is not there may hold the lock.
        let life = match Nvshmem::is_forked() {
            false => LIFE.lock().unwrap_or_else(PoisonError::into_inner),
            true => LIFE.try_lock().ok()?,
        };
        match &*life {
            Life::Live(running) => Some(Self::handle(running)),
            _ => None,
        }
    }

    /// This PE.
    pub fn pe(&self) -> Pe {
        self.comm.pe
    }

    /// How many PEs there are.
    pub fn n_pes(&self) -> u32 {
        self.comm.n_pes
    }

    /// The library.
    pub fn library(&self) -> Nvshmem {
        self.comm.nvshmem
    }

    /// How far NVSHMEM says it is initialised.
    ///
    /// # Errors
    /// As [`Nvshmem::status`].
    pub fn status(&self) -> Result<Status, NvshmemError> {
        self.comm.nvshmem.status()
    }

    /// The device's context that NVSHMEM works in.
    pub fn device(&self) -> &Arc<CudaContext> {
        &self.comm.context
    }

    /// A stream of this context's own: what blocking calls use, and there for the caller too.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.comm.stream
    }

    /// The longest that a set-up call or a blocking call may take.
    pub fn deadline(&self) -> Duration {
        self.comm.deadline
    }

    /// What runs here, for logs and bug reports.
    pub fn info(&self) -> Info {
        let (comm, arguments) = (&self.comm, &self.running.arguments);
        let allocations: Vec<usize> = match Nvshmem::is_forked() {
            false => self.heap.allocations().iter().map(|one| one.bytes()).collect(),
            // A thread that is not there may hold the lock; and there is no symmetric memory
            // either.
            true => Vec::new(),
        };
        Info {
            library: comm.nvshmem,
            pe: comm.pe,
            n_pes: comm.n_pes,
            device: comm.context.ordinal(),
            met_by: arguments.way,
            settings: arguments.settings.clone(),
            allocations: allocations.len(),
            allocated_bytes: allocations.iter().sum(),
        }
    }

    /// Ends NVSHMEM on all PEs as soon as possible, with an exit status, where the bootstrap has a
    /// way to; the id's has none.
    ///
    /// # Errors
    /// [`NvshmemError::Dead`], [`NvshmemError::Timeout`].
    pub fn global_exit(&self, status: i32) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmem_global_exit";
        // SAFETY: it takes any status; what follows is the end of the job.
        self.comm.block(CALL, move |api, _| unsafe { api.nvshmem_global_exit(status) })?;
        Ok(())
    }
}

impl Clone for Context {
    fn clone(&self) -> Self {
        Self::handle(&self.running)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.running.handles.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("comm", &self.comm).finish_non_exhaustive()
    }
}

/// What runs in this process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Info {
    /// The library, its version and its file.
    pub library: Nvshmem,
    /// This PE.
    pub pe: Pe,
    /// How many there are.
    pub n_pes: u32,
    /// The device's ordinal.
    pub device: usize,
    /// How the PEs met.
    pub met_by: &'static str,
    /// What was set for initialisation, with what this crate added.
    pub settings: Settings,
    /// Pieces of symmetric memory that are not freed.
    pub allocations: usize,
    /// Their bytes.
    pub allocated_bytes: usize,
}
