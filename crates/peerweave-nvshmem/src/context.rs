//! The caller's handle of the running NVSHMEM, and the state of NVSHMEM in this process.
//!
//! `ops` and `team` implement the operations of a context; `startup` starts and ends NVSHMEM.

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

/// A handle to the NVSHMEM context of this process. Every clone is a further handle to the same
/// context. Passing the last handle to [`finalize`](Self::finalize) finalises NVSHMEM.
///
/// Dropping a handle is local and does not finalise NVSHMEM. If every handle has been dropped and
/// none has been passed to `finalize`, NVSHMEM keeps running. [`current`](Self::current) then
/// returns a new handle.
pub struct Context {
    pub(crate) comm: Arc<Comm>,
    pub(crate) heap: Arc<Heap>,
    pub(crate) running: Arc<Running>,
}

/// The state that all handles of a context share.
pub(crate) struct Running {
    comm: Arc<Comm>,
    heap: Arc<Heap>,
    pub(crate) arguments: Arguments,
    handles: AtomicUsize,
}

/// The values of [`Arguments::bootstrap`] and [`Arguments::identity`], which together identify how
/// the PEs of an initialisation connect.
pub(crate) type BootstrapKey = (&'static str, u64);

/// The arguments of an initialisation. While NVSHMEM runs, a further initialisation in the same
/// process must have equal arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// The kind of bootstrap: a rendezvous, an id, MPI or a launcher.
    pub(crate) bootstrap: &'static str,
    /// The number of this PE, and the number of PEs in the job. `None` if NVSHMEM connects the PEs
    /// by MPI or by a launcher, which then determines both numbers.
    pub(crate) place: Option<(u32, u32)>,
    /// Number that identifies the rendezvous, the id or the MPI communicator through which the PEs
    /// connect. The number is 0 if the PEs connect through a launcher.
    pub(crate) identity: u64,
    pub(crate) device: usize,
    pub(crate) settings: Settings,
}

impl Arguments {
    pub(crate) fn meeting(&self) -> BootstrapKey {
        (self.bootstrap, self.identity)
    }
}

/// State of NVSHMEM in this process, which has at most one live context.
pub(crate) enum ProcessState {
    /// NVSHMEM is not running and can be started: it was not started yet, or a context that used a
    /// rendezvous or an id was finalised.
    Idle,
    /// A thread is initialising NVSHMEM. The field identifies the bootstrap of this initialisation.
    Starting(BootstrapKey),
    /// NVSHMEM is running.
    Live(Arc<Running>),
    /// A thread is finalising NVSHMEM: the call of [`Context::finalize`] with the last handle has
    /// not returned yet.
    Ending(Arc<Running>),
    /// NVSHMEM cannot be started again in this process. The field is the reason.
    Over(DeadState),
}

pub(crate) static LIFE: Mutex<ProcessState> = Mutex::new(ProcessState::Idle);

impl Running {
    pub(crate) fn check_usable(&self, call: &'static str) -> Result<(), NvshmemError> {
        self.comm.check_usable(call)
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

    /// Returns a closure that returns whether the context has been released. A finalised context is
    /// released when all handles to the context, to its memory and to its teams have been dropped.
    /// Background threads may own some of these handles. A released context no longer keeps the
    /// rendezvous alive.
    ///
    /// A context that has not been [finalised](Self::finalize) is not released before the process
    /// ends.
    pub fn gone(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let alive = Arc::downgrade(&self.comm.alive);
        move || alive.strong_count() == 0
    }

    /// Returns a new handle to the running context, or `None` if NVSHMEM is not running.
    pub fn current() -> Option<Self> {
        // In a forked child, the lock may be held by a thread that exists only in the parent.
        let life = match Nvshmem::is_forked() {
            false => LIFE.lock().unwrap_or_else(PoisonError::into_inner),
            true => LIFE.try_lock().ok()?,
        };
        match &*life {
            ProcessState::Live(running) => Some(Self::handle(running)),
            _ => None,
        }
    }

    /// Returns the number of this PE.
    pub fn pe(&self) -> Pe {
        self.comm.pe
    }

    /// Returns the number of PEs in the job.
    pub fn n_pes(&self) -> u32 {
        self.comm.n_pes
    }

    /// Returns the loaded NVSHMEM library.
    pub fn library(&self) -> Nvshmem {
        self.comm.nvshmem
    }

    /// Returns the state of NVSHMEM's initialisation.
    ///
    /// # Errors
    /// Returns the same errors as [`Nvshmem::status`].
    pub fn status(&self) -> Result<Status, NvshmemError> {
        self.comm.nvshmem.status()
    }

    /// Returns the CUDA context that NVSHMEM uses.
    pub fn device(&self) -> &Arc<CudaContext> {
        &self.comm.context
    }

    /// Returns the context's own stream, on which
    /// [`Team::barrier_blocking`](crate::Team::barrier_blocking) and
    /// [`Team::sync_blocking`](crate::Team::sync_blocking) run. The caller may use this stream too.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.comm.stream
    }

    /// Returns the time limit for each wait in a setup call or a blocking call.
    /// [`Settings::deadline`] sets this limit.
    pub fn deadline(&self) -> Duration {
        self.comm.deadline
    }

    /// Returns a description of the context for logs and bug reports.
    pub fn info(&self) -> Info {
        let (comm, arguments) = (&self.comm, &self.running.arguments);
        let allocations: Vec<usize> = match Nvshmem::is_forked() {
            false => self.heap.allocations().iter().map(|one| one.bytes()).collect(),
            // In a forked child, the lock may be held by a thread that exists only in the parent. A
            // forked child has no symmetric memory.
            true => Vec::new(),
        };
        Info {
            library: comm.nvshmem,
            pe: comm.pe,
            n_pes: comm.n_pes,
            device: comm.context.ordinal(),
            bootstrap: arguments.bootstrap,
            settings: arguments.settings.clone(),
            allocations: allocations.len(),
            allocated_bytes: allocations.iter().sum(),
        }
    }

    /// Ends the processes of all PEs as soon as possible, with the exit status `status`. Some
    /// bootstraps do not support this call, for example the bootstrap by a unique id.
    ///
    /// # Errors
    /// [`NvshmemError::Dead`] if NVSHMEM is unusable. [`NvshmemError::Timeout`] if the call does
    /// not return by the deadline.
    pub fn global_exit(&self, status: i32) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmem_global_exit";
        // SAFETY: the function accepts any status, and ends the job.
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

/// A description of the running NVSHMEM for logs and bug reports.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Info {
    /// The loaded NVSHMEM library. `Debug` prints its version and its path.
    pub library: Nvshmem,
    /// Number of this PE.
    pub pe: Pe,
    /// Number of PEs.
    pub n_pes: u32,
    /// Ordinal of the device that NVSHMEM uses.
    pub device: usize,
    /// The kind of bootstrap, such as "a rendezvous".
    pub bootstrap: &'static str,
    /// Settings with which NVSHMEM was initialised, including settings that this crate added.
    pub settings: Settings,
    /// Number of symmetric memory allocations that have not been freed.
    pub allocations: usize,
    /// Number of bytes of symmetric memory that this PE has allocated and not freed.
    pub allocated_bytes: usize,
}
