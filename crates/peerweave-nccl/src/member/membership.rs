//! The state of a communicator, which is shared by its clones, graphs, windows and operations. This
//! module also makes short NCCL calls on the communicator.
//!
//! `communicator.rs` has the public handle.
//!
//! # Invariants
//! - **[C1]** Only a thread inside the gate (`state.rs`) uses NCCL's handle. Only the thread that
//!   closed the gate frees the handle.
//! - **[C2]** Before a call returns and stops borrowing its buffers, NCCL has finished the call on
//!   the host, or the communicator has been aborted.
//! - A list contains every communicator of the process until the communicator is dropped. So all
//!   communicators can be aborted.

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

/// Default of [`Communicator::work_deadline`](crate::Communicator::work_deadline).
const WORK_DEADLINE: Duration = Duration::from_secs(600);

/// Maximum time for which a query of a communicator's state waits for the communicator's lock.
/// Another thread may hold the lock during a call.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_millis(10);

/// NCCL's handle of a communicator.
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

/// The state of a communicator. The clones, graphs, windows and operations of the communicator
/// share this state.
///
/// Every call writes to this struct. Processors fetch pairs of cache lines, so the struct is
/// aligned to 128 bytes. The states of two ranks then never share a pair of cache lines.
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
    /// Hash that is the same on every rank, and differs between the communicators of the job.
    pub(crate) identity: u64,
    pub(crate) blocking: bool,
    deadline_ms: AtomicU64,
    /// The last issued call. The low bits have its name (as a [`Call`]), and the high bits have its
    /// number.
    last: AtomicU64,
    /// Number of issued collectives.
    collectives: AtomicU64,
    /// Number of issued sends and receives.
    transfers: AtomicU64,
    /// Number of issued sends and receives that are paired. For a paired send or receive, the
    /// matching call is in the same group.
    paired: AtomicU64,
    /// Number (from `threads.rs`) of the thread that issued the last call. Before the first call,
    /// the number of the thread that created the communicator.
    last_thread: AtomicU64,
    /// Number of children created from the communicator.
    pub(crate) children: AtomicU64,
    /// Number of captured calls whose graphs keep the communicator alive.
    pub(crate) graphs: AtomicUsize,
    pub(crate) world: Option<World>,
    /// Progress of the abort of this communicator. An aborted call returns only after the abort has
    /// ended, because until then NCCL may use the call's memory ([C2] of this module).
    pub(crate) abort: Abort,
    /// Number of registrations, and the streams that may use registered memory.
    pub(crate) registered: RegistrationUse,
    /// Memory that peers may access until the communicator is freed. Leaked if NCCL does not
    /// confirm that the communicator is freed.
    deferred: Mutex<Vec<Keep>>,
    pub(crate) is_freed: Arc<AtomicBool>,
    work_deadline_ms: AtomicU64,
    /// Number of the NCCL group in which the owner of the communicator's lock may be blocked, or 0.
    /// All communicators of the group store this number, so that the watchdog can abort these
    /// communicators together. Groups with only one communicator have no number.
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

/// The driver's handle of the communicator's context. The handle is only compared with other
/// handles.
struct SharedContext(CUcontext);

// SAFETY: the shared pointer never changes and is only compared, so nothing has to be synchronised.
// A failure would be caught by the test `threads_share_a_communicator`.
unsafe impl Send for SharedContext {}
// SAFETY: the shared pointer never changes and is only compared, so nothing has to be synchronised.
// A failure would be caught by the test `threads_share_a_communicator`.
unsafe impl Sync for SharedContext {}

/// The rendezvous with which a communicator was created.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) rendezvous: Weak<Rendezvous>,
    /// Whether the rank numbers of the communicator are the PE numbers of the rendezvous.
    pub(crate) ranks_are_pes: bool,
}

/// Values from which the state of a communicator ([`Inner`]) is created.
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
    /// Whether a call of this crate has already made a CUDA context current in this thread.
    static HAS_CONTEXT: Cell<bool> = const { Cell::new(false) };
}

/// Largest handle of the driver's predefined streams. These handles are the same in every context:
/// 0 and 1 stand for the default stream, and 2 stands for the per-thread stream.
pub(super) const OF_EVERY_CONTEXT: usize = 2;

/// Number of communicators that this process has created.
static MADE: AtomicU64 = AtomicU64::new(0);

/// All communicators of this process that have not been dropped.
static ALL: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// Process ID of the process that created the communicators in [`ALL`].
static MADE_BY: AtomicU32 = AtomicU32::new(0);

/// Returns all communicators of this process that have not been dropped. Returns an empty list in a
/// forked process, because the lock may be held by a thread that exists only in the parent.
pub(crate) fn all() -> Vec<Arc<Inner>> {
    if MADE_BY.load(Ordering::Relaxed) != std::process::id() {
        return Vec::new();
    }
    ALL.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
}

/// Returns the same list as [`all`], but waits at most about 100 ms for the lock of the list.
/// Returns `None` if another thread still holds the lock. Used at process exit: a thread that was
/// stopped at exit may never release the lock.
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
    /// Creates the state of a communicator whose handle is ready, and adds the state to the list of
    /// all communicators.
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

    /// Returns the number and the name of the last call. Before the first call, the number is 0 and
    /// the name is empty.
    pub(crate) fn last(&self) -> (u64, &'static str) {
        let last = self.last.load(Ordering::Relaxed);
        (last >> Call::BITS, if last == 0 { "" } else { Call::name_of(last) })
    }

    /// Keeps memory allocated until the communicator is freed.
    pub(crate) fn defer_free(&self, keep: Keep) {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner).push(keep);
    }

    /// Records that NCCL has freed the communicator, and frees the deferred memory.
    pub(crate) fn set_freed(&self) {
        self.is_freed.store(true, Ordering::Release);
        drop(self.take_deferred());
    }

    /// Removes and returns the memory that [`defer_free`](Self::defer_free) keeps allocated. The
    /// caller frees this memory after NCCL has freed the communicator. If NCCL does not free the
    /// communicator, the caller leaks the memory.
    pub(crate) fn take_deferred(&self) -> Vec<Keep> {
        std::mem::take(&mut *self.deferred.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Increases the number of issued calls, and records the name and the thread of the call. The
    /// caller holds the communicator's lock.
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

    /// Returns whether all issued sends and receives are paired. For a paired send, the matching
    /// receive is in the same group. For a paired receive, the matching send is in the same group.
    pub(crate) fn transfers_are_paired(&self) -> bool {
        self.transfers.load(Ordering::Relaxed) == self.paired.load(Ordering::Relaxed)
    }

    /// Adds `transfers` to the number of paired sends and receives, whose matching call is in the
    /// same group. The caller holds the communicator's lock, and issues these sends and receives
    /// later.
    pub(crate) fn count_paired(&self, transfers: u64) {
        self.paired.fetch_add(transfers, Ordering::Relaxed);
    }

    /// Returns the number ([`this_thread`]) of the thread that issued the last call. Before the
    /// first call, returns the number of the thread that created the communicator.
    pub(crate) fn last_thread(&self) -> u64 {
        self.last_thread.load(Ordering::Relaxed)
    }

    /// Fails in a forked process. Also fails if the state of the communicator allows no new work.
    /// This is an early check: the call checks the state again when the call acquires the
    /// communicator's lock.
    #[inline]
    pub(crate) fn check_live(&self, call: &'static str) -> Result<(), NcclError> {
        self.nccl.not_forked(call)?;
        match self.gate.state() {
            State::Live => Ok(()),
            state => Err(self.dead(call, state)),
        }
    }

    /// Fails if the communicator was finalized or aborted.
    #[inline]
    pub(crate) fn check_open(&self, call: &'static str) -> Result<(), NcclError> {
        if self.gate.is_closed() { Err(self.dead(call, self.gate.state())) } else { Ok(()) }
    }

    /// Acquires the communicator's lock (the gate) exclusively. Waits for at most the
    /// communicator's deadline. Fails in a forked process, and if the communicator's state is not
    /// in `allowed`.
    #[inline]
    pub(crate) fn enter(&self, call: &'static str, allowed: Allowed) -> Result<Inside<'_>, NcclError> {
        self.enter_within(call, allowed, || self.deadline())
    }

    /// Acquires the lock like [`enter`](Self::enter), with `patience` as the time limit.
    #[inline]
    pub(crate) fn enter_within(
        &self,
        call: &'static str,
        allowed: Allowed,
        patience: impl FnOnce() -> Duration,
    ) -> Result<Inside<'_>, NcclError> {
        self.nccl.not_forked(call)?;
        let waited = Cell::new(Duration::ZERO);
        let limit = || {
            waited.set(patience());
            waited.get()
        };
        self.gate.enter(allowed, limit).map_err(|refused| match refused {
            Refused::State(state) => self.dead(call, state),
            Refused::Busy => self.timeout(call, waited.get()),
        })
    }

    /// Marks this thread as possibly blocked in NCCL, before a call of NCCL that may block. Fails
    /// if the communicator was finalized or aborted.
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
    /// aborted the communicator, returns the recorded reason. In all other cases, returns the error
    /// of [`dead`](Self::dead).
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

    /// Returns an error for every code except success.
    #[inline]
    pub(crate) fn check(&self, call: &'static str, code: ncclResult_t) -> Result<(), NcclError> {
        if code == ncclResult_t::ncclSuccess { Ok(()) } else { Err(self.failure(call, code)) }
    }

    /// Returns the state that NCCL reports for the communicator. On a non-blocking communicator,
    /// waits for the communicator's lock for at most `patience`. Returns `ncclInProgress` if
    /// another thread still holds the lock.
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

    /// Returns the state that NCCL reports for the communicator. The caller holds the
    /// communicator's lock (the gate) exclusively. On a blocking communicator, it is sufficient
    /// that the caller holds the lock as a reader.
    ///
    /// The query, `ncclCommGetAsyncError`, has a side effect. On a non-blocking communicator, NCCL
    /// keeps an internal job object for the last group. A query that returns success frees this
    /// object (2.26.2 and later). All other calls on the communicator also free the object, when
    /// they start. Two threads that query at the same time would free the object twice.
    pub(crate) fn ask(&self) -> Result<ncclResult_t, NcclError> {
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: the handle is live inside the gate. This thread is the owner of the gate [C1], or
        // the communicator is blocking. A blocking communicator never has a job to be freed, so
        // NCCL only reads. The pointer is to a live value.
        let code = self
            .nccl
            .code("ncclCommGetAsyncError", |api| unsafe { api.ncclCommGetAsyncError(self.handle.get(), &raw mut state) })?;
        self.check("ncclCommGetAsyncError", code)?;
        Ok(state)
    }

    /// Makes the device's context current in this thread, unless this context is already current.
    ///
    /// NCCL launches on the communicator's device, whatever context is current. However, stream
    /// handle 0 means the default stream of the current context, for the driver and for NCCL. In a
    /// thread without a context, NCCL's runtime creates a context on the first device and uses
    /// memory there. Any library may have changed the current context since the last call, so this
    /// function queries the current context each time.
    #[inline]
    pub(crate) fn bind(&self) -> Result<(), NcclError> {
        let mut current: CUcontext = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        let code = unsafe { self.driver.api().cuCtxGetCurrent(&raw mut current) };
        if code == Ok(CudaCode::SUCCESS) && current == self.cu_context.0 { Ok(()) } else { set_current(&self.context) }
    }

    /// Makes the device's context current like [`bind`](Self::bind) in two cases. First, the stream
    /// is a predefined stream, whose handle means a different stream in each context. Second, no
    /// call of this crate has made a context current in this thread yet. In other cases does
    /// nothing, because NCCL itself makes the communicator's device current.
    #[inline]
    pub(crate) fn bind_for(&self, stream: &CudaStream) -> Result<(), NcclError> {
        if stream.cu_stream().addr() > OF_EVERY_CONTEXT && HAS_CONTEXT.get() {
            return Ok(());
        }
        self.bind()?;
        HAS_CONTEXT.set(true);
        Ok(())
    }

    /// Checks the communicator and the stream of a call. Called before the buffers of the call are
    /// checked. Returns whether the stream is being captured.
    #[inline]
    pub(crate) fn begin_call(&self, call: &'static str, stream: &CudaStream) -> Result<bool, NcclError> {
        if !self.is_common_case(stream) {
            self.check_call(call, stream)?;
        }
        self.is_capturing(stream)
    }

    /// Returns whether the caller can omit [`check_call`](Self::check_call), because that function
    /// would succeed and change nothing. All of these conditions must hold: the process is not
    /// forked, the communicator is live, [`bind_for`](Self::bind_for) would do nothing, and
    /// [`check_stream`](Self::check_stream) would succeed.
    #[inline]
    fn is_common_case(&self, stream: &CudaStream) -> bool {
        let thread_is_bound = stream.cu_stream().addr() > OF_EVERY_CONTEXT && HAS_CONTEXT.get();
        let is_ours = stream.context().cu_ctx() == self.cu_context.0;
        !is_fork() && self.gate.state() == State::Live && thread_is_bound && is_ours
    }

    #[cold]
    fn check_call(&self, call: &'static str, stream: &CudaStream) -> Result<(), NcclError> {
        self.check_live(call)?;
        self.bind_for(stream)?;
        self.check_stream(call, stream)
    }

    /// Fails unless work of this communicator can be enqueued on the stream.
    #[inline]
    pub(crate) fn check_stream(&self, call: &'static str, stream: &CudaStream) -> Result<(), NcclError> {
        if stream.context().cu_ctx() != self.cu_context.0 {
            return self.check_context(call, "the stream", stream.context());
        }
        // Other threads cannot wait for a per-thread stream. Threads that free the stream's memory
        // or abort the communicator would have to wait for the stream.
        Ok(refuse_per_thread(call, stream)?)
    }

    /// Fails unless `context` is the communicator's context. `what` names the checked value in the
    /// error.
    #[cold]
    pub(crate) fn check_context(&self, call: &'static str, what: &'static str, context: &CudaContext) -> Result<(), NcclError> {
        let (found, expected) = (context.ordinal(), self.device());
        let kind = match found == expected {
            true if context.cu_ctx() == self.cu_context.0 => return Ok(()),
            true => MisuseKind::Combination {
                what,
                why: "the CUDA context differs from the communicator's context; use the primary context of the device for all CUDA objects and communicators",
            },
            false => MisuseKind::Device { what, found, expected },
        };
        Err(NcclError::misuse(call, kind))
    }
}

/// Maximum duration of a wait. Ten years can be added to any `Instant` without overflow.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Limits a duration to ten years, so that it can be added to any `Instant`.
pub(crate) fn bounded(duration: Duration) -> Duration {
    duration.min(LONGEST)
}

/// Converts a duration to milliseconds, rounded up.
fn millis(duration: Duration) -> u64 {
    u64::try_from(bounded(duration).as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Makes a context current in this thread.
pub(crate) fn set_current(context: &CudaContext) -> Result<(), NcclError> {
    Ok(peerweave_driver::bind(context)?)
}
