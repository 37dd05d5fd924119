//! NVSHMEM in this process: one context, with handles that are counted, and the way into the library.
//!
//! How it starts is `init.rs`, how it ends `finalize.rs`, memory `heap.rs`.
//!
//! # Invariants
//! - **\[C1\]** At most one context is live in a process.
//! - **\[C2\]** NVSHMEM is called with the device's context current, from one thread at a time, and not after something left it unusable.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use peerweave_bootstrap::Rendezvous;
use peerweave_driver::{
    CudaContext, CudaStream, PrivateStream, Streams, bind_if_needed, deadline_after, refuse_per_thread, wait, wait_until,
};
use peerweave_dylib::MissingSymbol;
use peerweave_types::Pe;

use crate::agree::Counted;
use crate::error::{DeadState, MisuseKind, NvshmemError, Timeout};
use crate::gate::{Gate, Inside, NoAnswer, Sent, Worker};
use crate::heap::{Allocation, Limits, Registered};
use crate::left::Left;
use crate::library::Status;
use crate::order::{Order, take};
use crate::parked::Farewell;
use crate::streams::pass_all;
use crate::sys::{Api, Families, nvshmem_team_t};
use crate::team::{Team, TeamKind};
use crate::{Nvshmem, Settings};

/// NVSHMEM, running in this process. Handles of the same context are clones; it ends when the last of them is given to
/// [`finalize`](Self::finalize).
///
/// Dropping handles is local and ends nothing: a process that only drops its context leaves NVSHMEM running, and
/// [`current`](Self::current) finds it again.
#[derive(Debug)]
pub struct Context {
    pub(crate) inner: Arc<Inner>,
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

pub(crate) struct Inner {
    pub(crate) nvshmem: Nvshmem,
    pub(crate) context: Arc<CudaContext>,
    /// For the blocking forms.
    pub(crate) stream: Arc<CudaStream>,
    /// For looks at a word, which nothing may delay: nobody else has it.
    pub(crate) side: PrivateStream,
    pub(crate) pe: Pe,
    pub(crate) n_pes: u32,
    pub(crate) arguments: Arguments,
    pub(crate) deadline: Duration,
    pub(crate) world: Option<Arc<Rendezvous>>,
    /// Tells this life of NVSHMEM from others over the same rendezvous; the same on every PE.
    pub(crate) life: u64,
    pub(crate) gate: Arc<Gate>,
    worker: Worker,
    dead: OnceLock<DeadState>,
    handles: AtomicUsize,
    /// Symmetric memory that was not freed, in the order of allocation: the same on every PE.
    pub(crate) allocations: Mutex<Vec<Arc<Allocation>>>,
    pub(crate) counts: Mutex<HashMap<Counted, u64>>,
    /// What the heap can have.
    pub(crate) limits: Limits,
    /// Symmetric memory that was freed: how many pieces, and their bytes.
    pub(crate) freed: Mutex<(u64, u64)>,
    /// Held by the thread that is in a collective set-up call, from before the others are met until it is over.
    setup: Mutex<()>,
    /// What the collectives of NVSHMEM's own teams are ordered by, and its set-up calls. One order for all of them: what NVSHMEM does for the world it does,
    /// in parts, as the teams of a machine and of an index.
    world_order: Arc<Order>,
    /// What those of teams that were made are ordered by, by the team's handle.
    orders: Mutex<HashMap<nvshmem_team_t, Arc<Order>>>,
    /// Outside memory that was registered as a source: first address and bytes, and what ends it when nobody needs it any more.
    pub(crate) registered: Mutex<Vec<(u64, usize, Weak<Registered>)>>,
    /// Which PEs' memory is mapped here.
    pub(crate) mapped: OnceLock<Vec<bool>>,
    /// Captured graphs that call NVSHMEM have clones of it.
    pub(crate) captured: Arc<()>,
    /// Modules that know NVSHMEM's state have clones of it.
    pub(crate) modules: Arc<()>,
    /// Every stream that NVSHMEM was given.
    pub(crate) used: Arc<Streams>,
    /// Set while a thread ends NVSHMEM: then it alone gets in.
    ending: AtomicBool,
    /// Whether the host has sent something over a network that no quiet from the host has completed since.
    pub(crate) sent: AtomicBool,
    /// What was left to NVSHMEM's own streams.
    pub(crate) left: Left,
    /// What destructors could not tell NVSHMEM yet.
    pub(crate) parked: Mutex<Vec<Farewell>>,
    /// Whether there may be any: set after one is parked, before its destructor tries the gate, whose lock hands it to who comes in next.
    pub(crate) any_parked: AtomicBool,
}

/// What initialisation found, to become a context.
pub(crate) struct Parts {
    pub(crate) nvshmem: Nvshmem,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) side: PrivateStream,
    pub(crate) pe: Pe,
    pub(crate) n_pes: u32,
    pub(crate) arguments: Arguments,
    pub(crate) world: Option<Arc<Rendezvous>>,
    pub(crate) life: u64,
    pub(crate) gate: Arc<Gate>,
    pub(crate) worker: Worker,
}

/// What this process has of NVSHMEM [C1].
pub(crate) enum Life {
    /// Nothing.
    Idle,
    /// A thread initialises, by this.
    Starting(Meeting),
    /// A context.
    Live(Arc<Inner>),
    /// A thread gives the last handle up.
    Ending(Arc<Inner>),
    /// It cannot be started any more.
    Over(DeadState),
}

/// The call that ends NVSHMEM.
pub(crate) const END: &str = "nvshmemx_hostlib_finalize";

pub(crate) static LIFE: Mutex<Life> = Mutex::new(Life::Idle);

impl Context {
    pub(crate) fn adopt(parts: Parts) -> Self {
        let Parts { nvshmem, context, stream, side, pe, n_pes, arguments, world, life, gate, worker } = parts;
        let limits = Limits::of(&arguments.settings);
        let inner = Arc::new(Inner {
            nvshmem,
            context,
            stream,
            side,
            pe,
            n_pes,
            deadline: arguments.settings.deadline_set(),
            arguments,
            world,
            life,
            gate,
            worker,
            dead: OnceLock::new(),
            handles: AtomicUsize::new(0),
            allocations: Mutex::default(),
            counts: Mutex::default(),
            limits,
            freed: Mutex::default(),
            setup: Mutex::default(),
            world_order: Arc::default(),
            orders: Mutex::default(),
            registered: Mutex::default(),
            mapped: OnceLock::new(),
            captured: Arc::default(),
            modules: Arc::default(),
            used: Arc::default(),
            ending: AtomicBool::new(false),
            sent: AtomicBool::new(false),
            left: Left::default(),
            parked: Mutex::default(),
            any_parked: AtomicBool::new(false),
        });
        Self::handle(&inner)
    }

    pub(crate) fn handle(inner: &Arc<Inner>) -> Self {
        inner.handles.fetch_add(1, Ordering::Relaxed);
        Self { inner: Arc::clone(inner) }
    }

    /// Another handle of the context that runs in this process, if one does.
    pub fn current() -> Option<Self> {
        // In a fork, somebody who is not there may have the lock.
        let life = match Nvshmem::is_forked() {
            false => LIFE.lock().unwrap_or_else(PoisonError::into_inner),
            true => LIFE.try_lock().ok()?,
        };
        match &*life {
            Life::Live(inner) => Some(Self::handle(inner)),
            _ => None,
        }
    }

    /// This PE.
    pub fn pe(&self) -> Pe {
        self.inner.pe
    }

    /// How many PEs there are.
    pub fn n_pes(&self) -> u32 {
        self.inner.n_pes
    }

    /// The library.
    pub fn library(&self) -> Nvshmem {
        self.inner.nvshmem
    }

    /// How far NVSHMEM says it is initialised.
    ///
    /// # Errors
    /// As [`Nvshmem::status`].
    pub fn status(&self) -> Result<Status, NvshmemError> {
        self.inner.nvshmem.status()
    }

    /// The device's context that NVSHMEM works in.
    pub fn device(&self) -> &Arc<CudaContext> {
        &self.inner.context
    }

    /// A stream of this context's own: what blocking calls use, and there for the caller too.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.inner.stream
    }

    /// The longest that a set-up call or a blocking call may take.
    pub fn deadline(&self) -> Duration {
        self.inner.deadline
    }

    /// What runs here, for logs and bug reports.
    pub fn info(&self) -> Info {
        let inner = &self.inner;
        let allocations: Vec<usize> = match Nvshmem::is_forked() {
            false => inner.allocations.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|one| one.bytes()).collect(),
            // Somebody who is not there may have the lock; and there is no symmetric memory either.
            true => Vec::new(),
        };
        Info {
            library: inner.nvshmem,
            pe: inner.pe,
            n_pes: inner.n_pes,
            device: inner.context.ordinal(),
            met_by: inner.arguments.way,
            settings: inner.arguments.settings.clone(),
            allocations: allocations.len(),
            allocated_bytes: allocations.iter().sum(),
        }
    }

    /// The team of all PEs.
    pub fn world(&self) -> Team {
        Team::world(&self.inner)
    }

    /// The team of the PEs whose memory is mapped here.
    ///
    /// # Errors
    /// [`NvshmemError::Dead`].
    pub fn shared(&self) -> Result<Team, NvshmemError> {
        Team::predefined(&self.inner, TeamKind::Shared)
    }

    /// The team of the PEs of this machine.
    ///
    /// # Errors
    /// [`NvshmemError::Dead`].
    pub fn node(&self) -> Result<Team, NvshmemError> {
        Team::predefined(&self.inner, TeamKind::Node)
    }

    /// The team of the PEs that have this PE's index on their machine.
    ///
    /// # Errors
    /// [`NvshmemError::Dead`].
    pub fn same_index(&self) -> Result<Team, NvshmemError> {
        Team::predefined(&self.inner, TeamKind::SameIndex)
    }

    /// Ends NVSHMEM on all PEs as soon as possible, with an exit status, where the bootstrap has a way to; the id's has none.
    ///
    /// # Errors
    /// [`NvshmemError::Dead`], [`NvshmemError::Timeout`].
    pub fn global_exit(&self, status: i32) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmem_global_exit";
        // SAFETY: it takes any status; what follows is the end of the job.
        self.inner.block(CALL, move |api, _| unsafe { api.nvshmem_global_exit(status) })?;
        Ok(())
    }
}

impl Clone for Context {
    fn clone(&self) -> Self {
        Self::handle(&self.inner)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.inner.handles.fetch_sub(1, Ordering::Relaxed);
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

impl Inner {
    pub(crate) fn handles(&self) -> usize {
        self.handles.load(Ordering::Relaxed)
    }

    /// Whether NVSHMEM can be called, and why not.
    #[inline]
    pub(crate) fn alive(&self, call: &'static str) -> Result<(), NvshmemError> {
        self.nvshmem.not_forked(call)?;
        match self.dead.get() {
            None => Ok(()),
            Some(state) => Err(NvshmemError::Dead { call, state: state.clone() }),
        }
    }

    /// Why NVSHMEM cannot be called any more.
    pub(crate) fn dead_state(&self) -> Option<&DeadState> {
        self.dead.get()
    }

    /// No more calls after this.
    pub(crate) fn bury(&self, state: DeadState) {
        // The first cause counts.
        let _ = self.dead.set(state);
    }

    #[inline]
    fn enter(&self, call: &'static str) -> Result<Inside<'_>, NvshmemError> {
        // First of all: in a fork, somebody who is not there may have the gate's lock.
        self.alive(call)?;
        let inside = match self.gate.try_enter(call) {
            Some(inside) => inside,
            None => self.enter_later(call)?,
        };
        // What kept the gate shut may have been what ended it.
        self.alive(call)?;
        if self.ending.load(Ordering::Relaxed) && call != END {
            return Err(NvshmemError::misuse(call, MisuseKind::Context { why: "another thread is ending NVSHMEM" }));
        }
        if self.any_parked.load(Ordering::Relaxed) {
            self.say_parked();
        }
        Ok(inside)
    }

    #[cold]
    fn enter_later(&self, call: &'static str) -> Result<Inside<'_>, NvshmemError> {
        let start = Instant::now();
        self.gate.enter(call, self.deadline).map_err(|other| {
            tracing::warn!(call, inside = other, "another call is still inside NVSHMEM");
            // That one may be well within its own deadline.
            self.alive(call).err().unwrap_or_else(|| self.late(call, start.elapsed(), Vec::new()))
        })
    }

    /// Calls NVSHMEM for something that does not wait for others [C2].
    #[inline]
    pub(crate) fn issue<R>(
        &self,
        call: &'static str,
        function: impl FnOnce(&'static Api, &'static Families) -> Result<R, MissingSymbol>,
    ) -> Result<R, NvshmemError> {
        let _inside = self.enter(call)?;
        bind_if_needed(&self.context)?;
        function(self.nvshmem.raw_api(), self.nvshmem.raw_families())
            .map_err(|missing| self.nvshmem.unsupported_function(call, &missing))
    }

    /// As [`issue`](Self::issue), for functions that return a status.
    #[inline]
    pub(crate) fn issue_status(
        &self,
        call: &'static str,
        function: impl FnOnce(&'static Api, &'static Families) -> Result<i32, MissingSymbol>,
    ) -> Result<(), NvshmemError> {
        let code = self.issue(call, function)?;
        self.nvshmem.check(call, code)
    }

    /// Calls NVSHMEM for something that waits for others or for the device, with the context's deadline [C2].
    pub(crate) fn block<R: Send + 'static>(
        &self,
        call: &'static str,
        function: impl FnOnce(&'static Api, &'static Families) -> Result<R, MissingSymbol> + Send + 'static,
    ) -> Result<R, NvshmemError> {
        self.go_in(call)?.block(call, function)
    }

    /// Goes inside for calls that wait, at most for the context's deadline.
    pub(crate) fn go_in(&self, call: &'static str) -> Result<Entered<'_>, NvshmemError> {
        let inside = self.enter(call)?.send(&self.gate);
        Ok(Entered { inner: self, inside: Some(inside) })
    }

    /// The turn to make a collective set-up call: one thread has it, from before the others are met until NVSHMEM is left, so that no call comes in between
    /// the meetings of another, and NVSHMEM never waits for PEs that wait for another call.
    pub(crate) fn setup_turn(&self, call: &'static str) -> Result<MutexGuard<'_, ()>, NvshmemError> {
        self.alive(call)?;
        take(&self.setup, call, self)
    }

    /// What the collectives of a team that was made are ordered by.
    pub(crate) fn order(&self, team: nvshmem_team_t) -> Arc<Order> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(orders.entry(team).or_default())
    }

    /// What those of NVSHMEM's own teams are ordered by.
    pub(crate) fn world_order(&self) -> Arc<Order> {
        Arc::clone(&self.world_order)
    }

    /// All teams' orders.
    pub(crate) fn orders(&self) -> Vec<Arc<Order>> {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.values().cloned().chain([self.world_order()]).collect()
    }

    /// A team is no more; NVSHMEM may give its handle to another.
    pub(crate) fn forget_order(&self, team: nvshmem_team_t) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).remove(&team);
    }

    /// Waits for all that this crate knows to be under way on the device: NVSHMEM waits for the whole device where it makes and ends teams, and a wait inside
    /// of it is the end, where one out here is an error.
    pub(crate) fn settle(&self, call: &'static str) -> Result<(), NvshmemError> {
        pass_all(call, self, &self.used)?;
        self.orders().iter().try_for_each(|order| order.settle(call, self).map(drop))
    }

    /// Lets nobody in from now on but the end. What others had enqueued by then is noted.
    pub(crate) fn begin_end(&self) -> Result<EndBegun<'_>, NvshmemError> {
        // Inside, so that nobody else is: whoever comes later sees it.
        let _inside = self.enter(END)?;
        self.ending.store(true, Ordering::Relaxed);
        Ok(EndBegun(self))
    }

    /// Completes what the host has sent over a network, and what was left to NVSHMEM's own streams.
    pub(crate) fn quiet_of_host(&self) -> Result<(), NvshmemError> {
        // Before the call: what is sent while it is inside comes after it.
        let sent = self.sent.swap(false, Ordering::Relaxed);
        // SAFETY: NVSHMEM is initialised.
        let quiet = self.block("nvshmem_quiet", |api, _| unsafe { api.nvshmem_quiet() });
        quiet.inspect_err(|_| {
            self.sent.fetch_or(sent, Ordering::Relaxed);
        })
    }

    /// The error that the device has by now, which NVSHMEM's calls without a result only print.
    pub(crate) fn healthy(&self) -> Result<(), NvshmemError> {
        Ok(wait(&self.side, Instant::now()).map(drop)?)
    }

    /// Whether something has no other owner. What a graph owns is dropped some time after the graph: that is waited for, for as long as a graph may just
    /// have gone.
    pub(crate) fn gone_with_graphs(&self, alone: impl Fn() -> bool) -> bool {
        const LONGEST: Duration = Duration::from_secs(2);
        if alone() {
            return true;
        }
        let deadline = deadline_after(self.deadline.min(LONGEST));
        let look = || {
            peerweave_driver::settle(deadline_after(Duration::from_millis(1)));
            Ok::<_, std::convert::Infallible>(alone() || is_alone(&self.captured))
        };
        let _ = wait_until(deadline, look);
        alone()
    }

    /// The error of a wait that took too long, with what the rendezvous knows.
    #[cold]
    pub(crate) fn late(&self, call: &'static str, waited: Duration, missing: Vec<Pe>) -> NvshmemError {
        let lost = self.world.as_ref().and_then(|world| world.check().err()).map(|error| error.to_string());
        Timeout { call, waited, pe: Some(self.pe), missing, lost }.into()
    }

    /// An error unless the PE is one of the job's.
    #[inline]
    pub(crate) fn check_pe(&self, call: &'static str, what: &'static str, pe: Pe) -> Result<i32, NvshmemError> {
        if pe.get() < self.n_pes {
            Ok(pe.get() as i32)
        } else {
            Err(NvshmemError::misuse(call, MisuseKind::Pe { what, found: pe, n_pes: self.n_pes }))
        }
    }

    /// An error unless the stream is one of this context's device.
    #[inline]
    pub(crate) fn check_stream(&self, call: &'static str, stream: &CudaStream) -> Result<(), NvshmemError> {
        refuse_per_thread(call, stream)?;
        let (found, expected) = (stream.context().ordinal(), self.context.ordinal());
        if found == expected {
            Ok(())
        } else {
            Err(NvshmemError::misuse(call, MisuseKind::Device { what: "the stream", found, expected }))
        }
    }
}

/// Ending NVSHMEM has begun. Where it does not succeed, others get in again.
pub(crate) struct EndBegun<'a>(&'a Inner);

impl Drop for EndBegun<'_> {
    fn drop(&mut self) {
        self.0.ending.store(false, Ordering::Relaxed);
    }
}

/// The way into NVSHMEM for a row of calls that wait. Nobody else gets in while this lives.
pub(crate) struct Entered<'a> {
    inner: &'a Inner,
    /// None while a call has it that never came back.
    inside: Option<Sent>,
}

impl Entered<'_> {
    /// Calls NVSHMEM for something that waits for others or for the device, with the context's deadline [C2].
    pub(crate) fn block<R: Send + 'static>(
        &mut self,
        call: &'static str,
        function: impl FnOnce(&'static Api, &'static Families) -> Result<R, MissingSymbol> + Send + 'static,
    ) -> Result<R, NvshmemError> {
        let inner = self.inner;
        inner.alive(call)?;
        let (context, nvshmem, inside) = (Arc::clone(&inner.context), inner.nvshmem, self.inside.take());
        let run = move || {
            bind_if_needed(&context)?;
            function(nvshmem.raw_api(), nvshmem.raw_families()).map_err(|missing| nvshmem.unsupported_function(call, &missing))
        };
        match inner.worker.run(inside, inner.deadline, run) {
            Ok((result, inside)) => {
                self.inside = inside;
                result
            }
            Err(NoAnswer::Late(waited)) => {
                inner.bury(DeadState::Stuck { inside: call });
                Err(inner.late(call, waited, Vec::new()))
            }
            Err(NoAnswer::Panicked) => {
                inner.bury(DeadState::Broken { by: call });
                Err(NvshmemError::Dead { call, state: DeadState::Broken { by: call } })
            }
        }
    }
}

/// Whether nobody else has a handle. What others did before they dropped theirs is seen by the caller. Only for a value of which nobody makes a `Weak`.
pub(crate) fn is_alone<T>(value: &Arc<T>) -> bool {
    let is_alone = Arc::strong_count(value) == 1;
    fence(Ordering::Acquire);
    is_alone
}

/// Runs something of cudarc's that first gives, and forgets, an error that some other object's destructor left in the context: it is put aside meanwhile.
pub(crate) fn undisturbed<R>(context: &CudaContext, run: impl FnOnce() -> R) -> R {
    let earlier = context.check_err();
    let result = run();
    context.record_err(earlier);
    result
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {} of {} on device {}", self.nvshmem, self.pe, self.n_pes, self.context.ordinal())
    }
}
