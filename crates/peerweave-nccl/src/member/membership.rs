//! The state shared by clones, graphs, windows and operations of a communicator, and calls of NCCL
//! on it.
//!
//! The public part is `communicator.rs`.
//!
//! # Invariants
//! - **[C1]** The handle is used only inside the gate, and freed only by the thread that closed it
//!   (`state.rs`).
//! - **[C2]** Before the borrows of a call end, NCCL has finished the call, or the communicator is
//!   aborted.
//! - Every communicator of the process is in one list until it is dropped, so that all of them can
//!   be aborted.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError, Weak};
use std::time::Duration;

use peerweave_bootstrap::Rendezvous;
use peerweave_driver::cudarc::driver::sys::CUcontext;
use peerweave_driver::{CudaCode, CudaContext, CudaStream, Driver, Keep, refuse_per_thread};

use crate::library::error::{CommunicatorName, MisuseKind, NcclError, Timeout};
use crate::library::loading::is_fork;
use crate::member::registered::RegistrationUse;
use crate::member::state::{Allowed, Gate, Inside, Refused, State};
use crate::member::threads::this_thread;
use crate::sys::{ncclComm, ncclComm_t, ncclResult_t};
use crate::{Call, Nccl, Rank};

/// The default of [`Communicator::work_deadline`](crate::Communicator::work_deadline).
const WORK_DEADLINE: Duration = Duration::from_secs(600);

/// Time for which a query waits for a call of another thread.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_millis(10);

/// NCCL's handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle(NonNull<ncclComm>);

// SAFETY: the shared pointer is dereferenced only by NCCL, which accepts calls of any thread, one
// at a time. The gate synchronises them [C1]. A failure would be caught by the test
// `threads_share_a_communicator`.
unsafe impl Send for Handle {}
// SAFETY: the shared pointer is dereferenced only by NCCL, which accepts calls of any thread, one
// at a time. The gate synchronises them [C1]. A failure would be caught by the test
// `threads_share_a_communicator`.
unsafe impl Sync for Handle {}

impl Handle {
    pub(crate) fn new(comm: ncclComm_t) -> Option<Self> {
        NonNull::new(comm).map(Self)
    }

    pub(crate) fn get(self) -> ncclComm_t {
        self.0.as_ptr()
    }
}

/// The state shared by clones, graphs, windows and operations of a communicator.
///
/// Every call writes this struct. So it shares no cache line, and no pair of lines that a processor
/// fetches together, with the struct of another thread's rank.
#[repr(align(128))]
pub(crate) struct Inner {
    pub(crate) nccl: Nccl,
    pub(crate) handle: Handle,
    pub(crate) gate: Gate,
    pub(crate) driver: &'static Driver,
    pub(crate) context: Arc<CudaContext>,
    cu_context: SharedContext,
    device: usize,
    pub(crate) n_ranks: usize,
    pub(crate) rank: Rank,
    pub(crate) name: Arc<CommunicatorName>,
    /// Hash of 64 bits that is the same on every rank, and differs between the communicators of the
    /// job.
    pub(crate) identity: u64,
    pub(crate) blocking: bool,
    deadline_ms: AtomicU64,
    /// The low bits identify the last call; the bits above are the number of the call.
    last: AtomicU64,
    /// Number of issued collectives, and of issued sends and receives.
    collectives: AtomicU64,
    transfers: AtomicU64,
    /// Number of sends and receives whose other side was in the same group.
    paired: AtomicU64,
    /// Number, from `threads.rs`, of the thread that created the communicator or last issued a
    /// call.
    last_thread: AtomicU64,
    /// Number of children created from the communicator.
    pub(crate) children: AtomicU64,
    /// Number of captures that hold the communicator.
    pub(crate) graphs: AtomicUsize,
    pub(crate) world: Option<World>,
    /// Progress of an abort. Aborted calls wait for its end, because NCCL may use their memory
    /// until then [C2].
    pub(crate) abort: Abort,
    /// The registrations, and the streams that may use them.
    pub(crate) registered: RegistrationUse,
    /// Memory that peers may access until the communicator is freed. Leaked unless NCCL confirms
    /// that it has freed the communicator.
    deferred: Mutex<Vec<Keep>>,
    pub(crate) is_freed: Arc<AtomicBool>,
    work_deadline_ms: AtomicU64,
    /// A number shared by the communicators of a group in which a thread may be blocked; 0
    /// otherwise.
    pub(crate) group: AtomicU64,
    /// The reason why the watchdog or a timed-out wait has aborted the communicator.
    pub(crate) abort_reason: OnceLock<NcclError>,
}

/// Progress of the abort of a communicator.
#[derive(Debug, Default)]
pub(crate) struct Abort {
    pub(crate) has_begun: AtomicBool,
    pub(crate) is_done: AtomicBool,
}

/// A context of the driver, for comparison only.
struct SharedContext(CUcontext);

// SAFETY: the shared pointer is only compared, or passed to the driver, which accepts it on any
// thread and synchronises its use. The `Arc` beside it keeps the context alive. A failure would be
// caught by the test `threads_share_a_communicator`.
unsafe impl Send for SharedContext {}
// SAFETY: the shared pointer is only compared, or passed to the driver, which accepts it on any
// thread and synchronises its use. The `Arc` beside it keeps the context alive. A failure would be
// caught by the test `threads_share_a_communicator`.
unsafe impl Sync for SharedContext {}

/// The rendezvous by which a communicator was created.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) rendezvous: Weak<Rendezvous>,
    /// Whether each rank has the number of its PE in the rendezvous.
    pub(crate) ranks_are_pes: bool,
}

/// The parts from which a communicator is created.
pub(crate) struct Parts {
    pub(crate) nccl: Nccl,
    pub(crate) handle: Handle,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) name: Option<String>,
    pub(crate) identity: u64,
    pub(crate) blocking: bool,
    pub(crate) deadline: Duration,
    pub(crate) world: Option<World>,
}

thread_local! {
    /// Whether this thread had a context at its last call.
    static HAS_CONTEXT: Cell<bool> = const { Cell::new(false) };
}

/// The largest of the handle values that mean a default stream (0 and 1) or the per-thread stream
/// (2). Every context has these streams.
pub(super) const OF_EVERY_CONTEXT: usize = 2;

/// Number of communicators that this process has created.
static MADE: AtomicU64 = AtomicU64::new(0);

/// All communicators of this process that have not been dropped.
static ALL: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// Process ID of the process that created them.
static MADE_BY: AtomicU32 = AtomicU32::new(0);

/// Returns all communicators of this process that have not been dropped. Returns none in a forked
/// process, where another thread may have held the lock.
pub(crate) fn all() -> Vec<Arc<Inner>> {
    if MADE_BY.load(Ordering::Relaxed) != std::process::id() {
        return Vec::new();
    }
    ALL.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
}

/// Like [`all`], but returns `None` if a thread holds the list for long. For the end of the
/// process, when other threads may have been stopped.
pub(crate) fn all_if_free() -> Option<Vec<Arc<Inner>>> {
    if MADE_BY.load(Ordering::Relaxed) != std::process::id() {
        return Some(Vec::new());
    }
    (0..100).find_map(|_| match ALL.try_lock() {
        Ok(all) => Some(all.iter().filter_map(Weak::upgrade).collect()),
        Err(TryLockError::Poisoned(all)) => Some(all.into_inner().iter().filter_map(Weak::upgrade).collect()),
        Err(TryLockError::WouldBlock) => {
            std::thread::sleep(Duration::from_millis(1));
            None
        }
    })
}

impl Inner {
    /// Creates a communicator from a handle that NCCL reports as ready.
    pub(crate) fn new(parts: Parts, driver: &'static Driver, rank: Rank, n_ranks: usize) -> Arc<Self> {
        let Parts { nccl, handle, context, name, identity, blocking, deadline, world } = parts;
        let number = MADE.fetch_add(1, Ordering::Relaxed) + 1;
        let inner = Arc::new(Self {
            nccl,
            handle,
            gate: Gate::default(),
            driver,
            cu_context: SharedContext(context.cu_ctx()),
            device: context.ordinal(),
            context,
            n_ranks,
            rank,
            name: Arc::new(CommunicatorName { name, rank, ranks: n_ranks, number }),
            identity,
            blocking,
            deadline_ms: AtomicU64::new(millis(deadline)),
            last: AtomicU64::new(0),
            collectives: AtomicU64::new(0),
            transfers: AtomicU64::new(0),
            paired: AtomicU64::new(0),
            last_thread: AtomicU64::new(this_thread()),
            children: AtomicU64::new(0),
            graphs: AtomicUsize::new(0),
            world,
            abort: Abort::default(),
            registered: RegistrationUse::default(),
            deferred: Mutex::default(),
            is_freed: Arc::default(),
            work_deadline_ms: AtomicU64::new(millis(WORK_DEADLINE)),
            group: AtomicU64::new(0),
            abort_reason: OnceLock::new(),
        });
        MADE_BY.store(std::process::id(), Ordering::Relaxed);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&inner));
        drop(all);
        inner
    }

    #[inline]
    pub(crate) fn device(&self) -> usize {
        self.device
    }

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms.load(Ordering::Relaxed))
    }

    pub(crate) fn set_deadline(&self, deadline: Duration) {
        self.deadline_ms.store(millis(deadline), Ordering::Relaxed);
    }

    pub(crate) fn work_deadline(&self) -> Duration {
        match self.work_deadline_ms.load(Ordering::Relaxed) {
            u64::MAX => Duration::MAX,
            deadline => Duration::from_millis(deadline),
        }
    }

    pub(crate) fn set_work_deadline(&self, deadline: Duration) {
        let millis = if deadline == Duration::MAX { u64::MAX } else { millis(deadline) };
        self.work_deadline_ms.store(millis, Ordering::Relaxed);
    }

    /// Returns the number and the name of the last call.
    pub(crate) fn last(&self) -> (u64, &'static str) {
        let last = self.last.load(Ordering::Relaxed);
        (last >> Call::BITS, if last == 0 { "" } else { Call::name_of(last) })
    }

    /// Keeps memory alive until the communicator is freed.
    pub(crate) fn defer_free(&self, keep: Keep) {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner).push(keep);
    }

    /// Records that NCCL has freed the communicator, so that no peer can access the deferred
    /// memory.
    pub(crate) fn set_freed(&self) {
        self.is_freed.store(true, Ordering::Release);
        drop(self.take_deferred());
    }

    /// Takes the deferred memory, for the thread that frees the communicator.
    pub(crate) fn take_deferred(&self) -> Vec<Keep> {
        std::mem::take(&mut *self.deferred.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records a call. The caller is inside the gate.
    #[inline]
    pub(crate) fn count(&self, call: Call) {
        // Only the owner of the gate writes, so a load and a store are enough.
        let last = self.last.load(Ordering::Relaxed);
        self.last.store(((last >> Call::BITS) + 1) << Call::BITS | call as u64, Ordering::Relaxed);
        let add_one = |count: &AtomicU64| count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if call.is_collective() {
            add_one(&self.collectives);
        } else if call.is_transfer() {
            add_one(&self.transfers);
        }
        self.last_thread.store(this_thread(), Ordering::Relaxed);
    }

    /// Returns the number of issued collectives.
    pub(crate) fn collectives(&self) -> u64 {
        self.collectives.load(Ordering::Relaxed)
    }

    /// Returns whether each send and receive so far had its other side in the same group.
    pub(crate) fn transfers_are_paired(&self) -> bool {
        self.transfers.load(Ordering::Relaxed) == self.paired.load(Ordering::Relaxed)
    }

    /// Records that this many of the sends and receives about to be issued have their other side in
    /// the same group. The caller is inside the gate.
    pub(crate) fn count_paired(&self, transfers: u64) {
        self.paired.fetch_add(transfers, Ordering::Relaxed);
    }

    /// Returns the thread that created it or last issued a call: the number of [`this_thread`].
    pub(crate) fn last_thread(&self) -> u64 {
        self.last_thread.load(Ordering::Relaxed)
    }

    /// Fails unless work can be enqueued now, in this process. The state is checked again when the
    /// gate is entered.
    #[inline]
    pub(crate) fn check_live(&self, call: &'static str) -> Result<(), NcclError> {
        self.nccl.not_forked(call)?;
        match self.gate.state() {
            State::Live => Ok(()),
            state => Err(self.dead(call, state)),
        }
    }

    /// Fails if the communicator was closed. For a thread inside the gate.
    #[inline]
    pub(crate) fn check_open(&self, call: &'static str) -> Result<(), NcclError> {
        if self.gate.is_closed() { Err(self.dead(call, self.gate.state())) } else { Ok(()) }
    }

    /// Enters the gate exclusively. Fails in a forked process.
    #[inline]
    pub(crate) fn enter(&self, call: &'static str, allowed: Allowed) -> Result<Inside<'_>, NcclError> {
        self.enter_within(call, allowed, || self.deadline())
    }

    /// Like [`enter`](Self::enter), with another time limit than the communicator's deadline.
    #[inline]
    pub(crate) fn enter_within(
        &self,
        call: &'static str,
        allowed: Allowed,
        patience: impl FnOnce() -> Duration,
    ) -> Result<Inside<'_>, NcclError> {
        self.nccl.not_forked(call)?;
        self.gate.enter(allowed, patience).map_err(|refused| self.refused(call, refused))
    }

    /// Marks this thread as blocking, before a call that may block in NCCL.
    #[inline]
    pub(crate) fn enter_blocking(&self, call: &'static str, inside: &Inside<'_>) -> Result<(), NcclError> {
        inside.enter_blocking().map_err(|state| self.dead(call, state))
    }

    #[cold]
    pub(crate) fn refused(&self, call: &'static str, refused: Refused) -> NcclError {
        match refused {
            Refused::State(state) => self.dead(call, state),
            Refused::Busy => self.timeout(call, self.deadline()),
        }
    }

    #[cold]
    pub(crate) fn dead(&self, call: &'static str, state: State) -> NcclError {
        NcclError::Dead { call, communicator: Arc::clone(&self.name), state: state.dead() }
    }

    /// Returns the error of a call or a wait that was aborted. If the watchdog or a timed-out wait
    /// aborted the communicator, this is the recorded reason; otherwise the error of
    /// [`dead`](Self::dead).
    #[cold]
    pub(crate) fn abort_error(&self, call: &'static str) -> NcclError {
        self.abort_reason.get().cloned().map_or_else(|| self.dead(call, self.gate.state()), |reason| reason.of_call(call))
    }

    #[cold]
    pub(crate) fn timeout(&self, call: &'static str, waited: Duration) -> NcclError {
        let sequence = Some(self.last().0).filter(|number| *number > 0);
        let communicator = Some(Arc::clone(&self.name));
        Timeout { call, sequence, waited, communicator, missing: Vec::new(), reports: Vec::new() }.into()
    }

    /// Returns the error of a call for which NCCL returned `code`. If an abort ended the call, the
    /// code has no meaning and the reason of the abort is returned.
    #[cold]
    pub(crate) fn failure(&self, call: &'static str, code: ncclResult_t) -> NcclError {
        if self.gate.is_closed() {
            return self.abort_error(call);
        }
        self.nccl.failure(call, code, Some(Arc::clone(&self.name)))
    }

    /// Fails for every code except success.
    #[inline]
    pub(crate) fn check(&self, call: &'static str, code: ncclResult_t) -> Result<(), NcclError> {
        if code == ncclResult_t::ncclSuccess { Ok(()) } else { Err(self.failure(call, code)) }
    }

    /// Returns the state of the communicator; in progress if another thread stays inside for longer
    /// than `patience`.
    pub(crate) fn async_code(&self, call: &'static str, patience: Duration) -> Result<ncclResult_t, NcclError> {
        self.nccl.not_forked(call)?;
        if self.blocking {
            let _reader = self.gate.enter_shared(Allowed::OPEN).map_err(|refused| self.refused(call, refused))?;
            return self.ask();
        }
        match self.gate.enter(Allowed::OPEN, || patience) {
            Ok(_inside) => self.ask(),
            Err(Refused::Busy) => Ok(ncclResult_t::ncclInProgress),
            Err(refused) => Err(self.refused(call, refused)),
        }
    }

    /// Returns the state of the communicator. For the owner of the gate; on a blocking communicator
    /// also for a reader.
    ///
    /// NCCL's query has side effects. On a non-blocking communicator, the thread that reads success
    /// frees the job of the last group (2.26.2 and later), as every other call does at its start.
    /// Two such threads at the same time would free it twice.
    pub(crate) fn ask(&self) -> Result<ncclResult_t, NcclError> {
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: the handle is live inside the gate, and this thread is its owner [C1], or the
        // communicator blocks and never has a job to be freed, so that NCCL only reads; the pointer
        // is to a live value.
        let code = self
            .nccl
            .code("ncclCommGetAsyncError", |api| unsafe { api.ncclCommGetAsyncError(self.handle.get(), &raw mut state) })?;
        self.check("ncclCommGetAsyncError", code)?;
        Ok(state)
    }

    /// Makes the device's context current in this thread.
    ///
    /// NCCL launches on the communicator's device whichever context is current. But handle 0 means
    /// the default stream of the current context, for the driver and for NCCL. And in a thread
    /// without a context, NCCL's runtime creates one on the first device and uses memory there. So
    /// each call checks: any library may have changed the current context since the last call.
    #[inline]
    pub(crate) fn bind(&self) -> Result<(), NcclError> {
        let mut current: CUcontext = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        let code = unsafe { self.driver.api().cuCtxGetCurrent(&raw mut current) };
        if code == Ok(CudaCode::SUCCESS) && current == self.cu_context.0 { Ok(()) } else { set_current(&self.context) }
    }

    /// Like [`bind`](Self::bind), for work on a stream. The driver is queried only if necessary:
    /// for streams that every context has, and for a thread that may have no context. If another
    /// context is current, NCCL itself makes the communicator's device current.
    #[inline]
    pub(crate) fn bind_for(&self, stream: &CudaStream) -> Result<(), NcclError> {
        if stream.cu_stream().addr() > OF_EVERY_CONTEXT && HAS_CONTEXT.get() {
            return Ok(());
        }
        self.bind()?;
        HAS_CONTEXT.set(true);
        Ok(())
    }

    /// Returns whether all checks that precede the checks of the buffers would succeed without a
    /// query. Then the process is not a fork, the communicator is live,
    /// [`bind_for`](Self::bind_for) and [`check_stream`](Self::check_stream) would succeed, and
    /// [`may_check_capture_later`](Self::may_check_capture_later) is true.
    #[inline]
    pub(crate) fn is_common_case(&self, stream: &CudaStream) -> bool {
        let thread_is_bound = stream.cu_stream().addr() > OF_EVERY_CONTEXT && HAS_CONTEXT.get();
        let is_ours = stream.context().cu_ctx() == self.cu_context.0;
        !is_fork() && self.gate.state() == State::Live && thread_is_bound && is_ours && self.may_check_capture_later(stream)
    }

    /// Fails unless work of this communicator can be enqueued on the stream.
    #[inline]
    pub(crate) fn check_stream(&self, call: &'static str, stream: &CudaStream) -> Result<(), NcclError> {
        if stream.context().cu_ctx() != self.cu_context.0 {
            return self.check_context(call, "the stream", stream.context());
        }
        // No other thread can wait for a per-thread stream: neither a thread that frees memory
        // which the stream uses, nor one that aborts.
        Ok(refuse_per_thread(call, stream)?)
    }

    /// Fails unless a value belongs to the communicator's context.
    #[cold]
    pub(crate) fn check_context(&self, call: &'static str, what: &'static str, context: &CudaContext) -> Result<(), NcclError> {
        let (found, expected) = (context.ordinal(), self.device());
        let kind = match found == expected {
            true if context.cu_ctx() == self.cu_context.0 => return Ok(()),
            true => MisuseKind::Combination {
                what,
                why: "found another context than that of the communicator, expected the primary context for both",
            },
            false => MisuseKind::Device { what, found, expected },
        };
        Err(NcclError::misuse(call, kind))
    }
}

/// Maximum duration of a wait: ten years, which can be added to any instant.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Returns a duration that can be added to any instant.
pub(crate) fn bounded(duration: Duration) -> Duration {
    duration.min(LONGEST)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(bounded(duration).as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Makes a context current in this thread.
pub(crate) fn set_current(context: &CudaContext) -> Result<(), NcclError> {
    Ok(peerweave_driver::bind(context)?)
}
