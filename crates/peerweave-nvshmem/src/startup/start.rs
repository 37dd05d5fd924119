//! Starting NVSHMEM: by a rendezvous, by an id, by MPI, by the launcher.
//!
//! Invariant: NVSHMEM is started once; while it starts, and after it failed to, a second attempt is
//! an error.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use peerweave_bootstrap::{Rendezvous, interface};
use peerweave_driver::{CudaContext, CudaError, CudaStream, PrivateStream, bind_if_needed};
use peerweave_types::Pe;

use super::interface as asked_interface;
use super::preflight::{self, Card, Met};
use super::unique_id::UniqueId;
use super::verdict::Verdict;
use crate::comm::Parts;
use crate::comm::enqueued::undisturbed;
use crate::comm::entry::Entry;
use crate::comm::gate::{Gate, NoAnswer, Sent, Worker};
use crate::comm::identity::{SEED, mix};
use crate::context::{Arguments, Context, LIFE, Life};
use crate::error::{DeadState, MisuseKind, NvshmemError, PreflightError, Timeout};
use crate::library::{Nvshmem, Settings, Status, plugins};
use crate::sys::{self, nvshmemx_init_attr_t};

/// One thread at a time inside NVSHMEM, whichever life or id it is for.
static GATE: LazyLock<Arc<Gate>> = LazyLock::new(Arc::default);

/// How the PEs meet.
enum Way {
    /// By an id.
    Id(UniqueId, u32, u32),
    /// By MPI: the exposed address of the communicator, which another thread of this process uses.
    Mpi(usize),
    /// By the launcher's environment.
    Launcher,
}

impl Context {
    /// Starts NVSHMEM among the PEs of a rendezvous, with the same numbers: the usual way.
    ///
    /// The PEs first tell each other what they have: one that cannot start, that has another
    /// library, other settings, or another PE's GPU is an error on every PE before NVSHMEM is
    /// called. The id travels by the rendezvous, and NVSHMEM is told to use its interface. Later
    /// set-up calls meet there too (the context keeps it): they count among its collective calls,
    /// which come in the same order on every PE.
    ///
    /// Where NVSHMEM runs in this process with the same arguments, this gives another handle, and
    /// meets nobody. A process that cannot start, since it has another context or has had one that
    /// cannot be started again, is an error on every PE.
    ///
    /// `device` is the device of this PE; each PE needs its own.
    ///
    /// # Collective
    /// All PEs of the rendezvous.
    ///
    /// # Errors
    /// [`NvshmemError::Preflight`], [`NvshmemError::Plugin`], [`NvshmemError::Load`];
    /// [`NvshmemError::Bootstrap`] and [`NvshmemError::Timeout`] name who did not come;
    /// [`MisuseKind::AlreadyInitialized`] where a context runs that was started otherwise: the same
    /// arguments give another handle of it.
    pub fn from_rendezvous(
        rendezvous: &Arc<Rendezvous>,
        device: &Arc<CudaContext>,
        settings: Settings,
    ) -> Result<Self, NvshmemError> {
        const CALL: &str = "Context::from_rendezvous";
        let (pe, n_pes) = (rendezvous.pe(), rendezvous.n_pes());
        let settings = with_interface(settings);
        let arguments =
            arguments("a rendezvous", Some((pe.get(), n_pes)), Arc::as_ptr(rendezvous).addr() as u64, device, settings);
        let (start, refused) = match Start::begin(CALL, &arguments)? {
            Begun::Running(context) => return Ok(context),
            Begun::Start(start) => (Some(start), Ok(())),
            Begun::Refused(error) => (None, Err(error)),
        };
        // Nothing of this PE's may keep the others waiting: its error is its greeting.
        let able = refused.and_then(|()| arguments.settings.check(CALL));
        let own = able.and_then(|()| greeting(CALL, &arguments, device));
        let text = match &own {
            Ok((_, card)) => card.to_text(),
            Err(error) => format!("error\t{error}"),
        };
        let all = rendezvous.exchange("peerweave-nvshmem/init", text.as_bytes()).map_err(NvshmemError::bootstrap(CALL));
        let (ready, _) = own?;
        let cards: Vec<_> = all?.iter().map(|text| Card::from_text(&String::from_utf8_lossy(text))).collect();
        // All have the same cards, so that this is an error on all or on none: the next exchange
        // has everybody or nobody.
        preflight::together(pe, &cards)?;
        // Reachability is seen by each PE for itself, and who does not get into NVSHMEM must not
        // leave the others there alone: so the outcome is told too. With the id, which is not made
        // before: NVSHMEM reads its settings then, once for all, and they are compared by now.
        let reached = preflight::reachable(pe, &cards, device, &arguments.settings);
        let id = reached.and_then(|()| match pe.get() {
            0 => make_id(CALL, ready.nvshmem, &arguments.settings, &ready.worker).map(Some),
            _ => Ok(None),
        });
        let inside = id.and_then(|id| Ok((id, enter(CALL, arguments.settings.deadline_set())?)));
        let text = match &inside {
            Ok((id, _)) => Verdict::Ready(*id).to_text(),
            Err(error) => Verdict::Cannot(error.to_string()).to_text(),
        };
        let verdicts =
            rendezvous.exchange("peerweave-nvshmem/checked", text.as_bytes()).map_err(NvshmemError::bootstrap(CALL))?;
        let (_, inside) = inside?;
        let mut id = None;
        for (pe, text) in verdicts.iter().enumerate() {
            match Verdict::from_text(&String::from_utf8_lossy(text)) {
                Verdict::Ready(made) => id = id.or(made),
                Verdict::Cannot(reason) => return Err(PreflightError::Peer { pe: Pe::new(pe as u32), reason }.into()),
            }
        }
        let Some(id) = id else {
            return Err(PreflightError::Peer { pe: Pe::new(0), reason: "it sent no id".to_owned() }.into());
        };
        let start = start.expect("a PE that may not start has an error of its own");
        start.run(ready, inside, Way::Id(id, pe.get(), n_pes), device, arguments, Some(rendezvous))
    }

    /// A new id for PEs to meet with by [`from_unique_id`](Self::from_unique_id). Loads a plug-in,
    /// and opens a socket in this process that listens until they have met.
    ///
    /// `settings` say on which interface. NVSHMEM reads all of its settings here, and never again
    /// in this process: the same are to be given when starting.
    ///
    /// # Errors
    /// [`MisuseKind::AlreadyInitialized`] where it has read others; [`DeadState::InitFailed`] where
    /// it was asked for an id in vain before. [`NvshmemError::Plugin`], [`NvshmemError::Load`],
    /// [`NvshmemError::Nvshmem`] where there is no usable interface, [`NvshmemError::Timeout`].
    pub fn unique_id(settings: &Settings) -> Result<UniqueId, NvshmemError> {
        const CALL: &str = "Context::unique_id";
        settings.check(CALL)?;
        let settings = &settings.clone().with_switch();
        let nvshmem = Nvshmem::load()?;
        can_still_start(CALL)?;
        settings.check_read(CALL)?;
        nvshmem.check_id_plugin(settings)?;
        plugins::check(nvshmem, Some(plugins::OF_IDS), settings)?;
        asked_interface::check(settings)?;
        make_id(CALL, nvshmem, settings, &start_worker(CALL)?)
    }

    /// Starts NVSHMEM as PE `pe` of `n_pes` that all have the id, which the caller carried to them.
    ///
    /// # Collective
    /// All `n_pes` PEs.
    ///
    /// # Errors
    /// As [`from_rendezvous`](Self::from_rendezvous), but who is missing, other libraries and
    /// shared GPUs are not found out: only the deadline helps.
    pub fn from_unique_id(
        id: UniqueId,
        pe: Pe,
        n_pes: u32,
        device: &Arc<CudaContext>,
        settings: Settings,
    ) -> Result<Self, NvshmemError> {
        const CALL: &str = "Context::from_unique_id";
        settings.check(CALL)?;
        if i32::try_from(n_pes).is_err() || pe.get() >= n_pes {
            return Err(NvshmemError::misuse(CALL, MisuseKind::Pe { what: "this PE", found: pe, n_pes }));
        }
        let arguments = arguments("an id", Some((pe.get(), n_pes)), number_of(&id), device, settings);
        begin_alone(CALL, Way::Id(id, pe.get(), n_pes), device, arguments)
    }

    /// Starts NVSHMEM among the processes of an MPI communicator, with its ranks as PEs.
    ///
    /// # Collective
    /// All processes of the communicator.
    ///
    /// # Errors
    /// As [`from_unique_id`](Self::from_unique_id). [`NvshmemError::Plugin`] also for a plug-in
    /// that does not load, as one for another MPI.
    ///
    /// # Safety
    /// `communicator` points to an `MPI_Comm` of the MPI that NVSHMEM's plug-in is linked to. MPI
    /// is initialised, another thread than the main one may call it (`MPI_THREAD_SERIALIZED` at
    /// least), and both live until NVSHMEM is finalised, or if this call times out, until the
    /// process ends.
    pub unsafe fn from_mpi(
        communicator: *mut c_void,
        device: &Arc<CudaContext>,
        settings: Settings,
    ) -> Result<Self, NvshmemError> {
        const CALL: &str = "Context::from_mpi";
        settings.check(CALL)?;
        let arguments = arguments("MPI", None, communicator.addr() as u64, device, settings);
        begin_alone(CALL, Way::Mpi(communicator.expose_provenance()), device, arguments)
    }

    /// Starts NVSHMEM among the processes that a launcher started, by the launcher's own service:
    /// PMI, PMI-2 or PMIx (`NVSHMEM_BOOTSTRAP`, `NVSHMEM_BOOTSTRAP_PMI`).
    ///
    /// # Collective
    /// All processes of the job.
    ///
    /// # Errors
    /// As [`from_unique_id`](Self::from_unique_id). [`NvshmemError::Plugin`] also for a plug-in
    /// that does not load, as one for another PMIx. Where no launcher started the process, NVSHMEM
    /// says so in its own words.
    pub fn from_launcher(device: &Arc<CudaContext>, settings: Settings) -> Result<Self, NvshmemError> {
        const CALL: &str = "Context::from_launcher";
        settings.check(CALL)?;
        let arguments = arguments("the launcher", None, 0, device, settings);
        begin_alone(CALL, Way::Launcher, device, arguments)
    }
}

fn arguments(
    way: &'static str,
    place: Option<(u32, u32)>,
    which: u64,
    device: &Arc<CudaContext>,
    settings: Settings,
) -> Arguments {
    Arguments { way, place, which, device: device.ordinal(), settings: settings.with_switch() }
}

/// A number that tells ids apart, and says nothing of what is in them.
fn number_of(id: &UniqueId) -> u64 {
    id.to_bytes().iter().fold(SEED, |hash, byte| mix(hash, (*byte).into()))
}

/// NVSHMEM uses the interface that the job uses.
fn with_interface(settings: Settings) -> Settings {
    let asked = std::env::var(peerweave_bootstrap::env::names::INTERFACE).ok();
    let chosen = interface::advertise_address(asked.as_deref()).ok();
    let family = chosen.as_ref().filter(|chosen| chosen.address.is_ipv6()).map(|_| "AF_INET6".to_owned());
    settings
        // A bare name would be the beginning of a name.
        .or("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", || chosen.map(|chosen| format!("={}", chosen.name)))
        .or("NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY", || family)
}

fn start_worker(call: &'static str) -> Result<Worker, NvshmemError> {
    Worker::start().map_err(|error| {
        tracing::error!(%error, "no thread for NVSHMEM");
        NvshmemError::misuse(call, MisuseKind::Context { why: "the operating system refuses a thread" })
    })
}

fn greeting(call: &'static str, arguments: &Arguments, device: &Arc<CudaContext>) -> Result<(Ready, Card), NvshmemError> {
    let nvshmem = Nvshmem::load()?;
    arguments.settings.check_read(call)?;
    let card = preflight::local(nvshmem, device, &arguments.settings, Met::Id)?;
    Ok((Ready::new(call, nvshmem, device, &arguments.settings)?, card))
}

/// What a start needs of this process: had before anybody is told that this PE can.
struct Ready {
    nvshmem: Nvshmem,
    worker: Worker,
    stream: Arc<CudaStream>,
    side: PrivateStream,
}

impl Ready {
    fn new(call: &'static str, nvshmem: Nvshmem, device: &Arc<CudaContext>, settings: &Settings) -> Result<Self, NvshmemError> {
        let (worker, context) = (start_worker(call)?, Arc::clone(device));
        // The caller gets this one too, so it is one that cudarc knows; and the first of those
        // waits for the whole device, for as long as that takes.
        let made = worker.run((), settings.deadline_set(), move || undisturbed(&context, || context.new_stream()));
        let stream =
            made.map_err(|error| no_answer(call, "cuCtxSynchronize", error, None))?.0.map_err(CudaError::of("cuStreamCreate"))?;
        Ok(Self { nvshmem, worker, stream, side: PrivateStream::new(device)? })
    }
}

fn make_id(call: &'static str, nvshmem: Nvshmem, settings: &Settings, worker: &Worker) -> Result<UniqueId, NvshmemError> {
    const FUNCTION: &str = "nvshmemx_get_uniqueid";
    nvshmem.not_forked(call)?;
    let inside = enter(call, settings.deadline_set())?;
    let environment = settings.apply();
    let made = worker.run(inside, settings.deadline_set(), move || {
        let mut id = sys::nvshmemx_uniqueid_t::EMPTY;
        // SAFETY: the pointer is to a live struct that is stamped with its version.
        nvshmem.code(FUNCTION, |api| unsafe { api.nvshmemx_get_uniqueid(&raw mut id) }).map(|code| (code, id))
    });
    match made {
        Ok((result, _inside)) => {
            environment.restore();
            let (code, id) = result?;
            nvshmem.check(FUNCTION, code).inspect_err(|_| GAVE_UP.store(true, Ordering::Relaxed))?;
            Ok(UniqueId::from_raw(&id))
        }
        Err(error) => {
            environment.leave();
            Err(no_answer(call, FUNCTION, error, None))
        }
    }
}

/// Whether NVSHMEM was asked for an id in vain: it has let go of its plug-in then, and may do so
/// again if it is asked again, or started (3.4.5).
static GAVE_UP: AtomicBool = AtomicBool::new(false);

fn can_still_start(call: &'static str) -> Result<(), NvshmemError> {
    if GAVE_UP.load(Ordering::Relaxed) { Err(NvshmemError::Dead { call, state: DeadState::InitFailed }) } else { Ok(()) }
}

/// Goes into NVSHMEM, which another thread may be in, for whichever life or id.
fn enter(call: &'static str, patience: Duration) -> Result<Sent, NvshmemError> {
    let start = Instant::now();
    let inside = GATE.enter(call, patience).map_err(|inside| {
        tracing::warn!(call, inside, "another call is still inside NVSHMEM");
        // Whether that one ever comes back is not known here: a context that it belongs to says so
        // itself.
        Timeout { call, waited: start.elapsed(), pe: None, missing: Vec::new(), lost: None }
    })?;
    Ok(inside.send(&GATE))
}

fn no_answer(call: &'static str, function: &'static str, error: NoAnswer, world: Option<(&Rendezvous, Vec<Pe>)>) -> NvshmemError {
    match error {
        NoAnswer::Late(waited) => {
            let (pe, missing, lost) = match world {
                Some((world, missing)) => (Some(world.pe()), missing, world.check().err().map(|error| error.to_string())),
                None => (None, Vec::new(), None),
            };
            Timeout { call: function, waited, pe, missing, lost }.into()
        }
        NoAnswer::Panicked => NvshmemError::Dead { call, state: DeadState::Broken { by: function } },
    }
}

/// A start that is under way; ends in a context, or in none forever, or where NVSHMEM was not
/// called, as if nothing had been.
struct Start {
    call: &'static str,
    outcome: Option<Life>,
}

enum Begun {
    /// Another handle of what runs.
    Running(Context),
    Start(Start),
    /// This process cannot start. Others may wait for it where they meet.
    Refused(NvshmemError),
}

impl Start {
    /// # Errors
    /// Where the others are not to hear of it: they are in a call of what this PE started, or
    /// starts, with them.
    fn begin(call: &'static str, arguments: &Arguments) -> Result<Begun, NvshmemError> {
        // In a fork, somebody who is not there may have the lock.
        let forked = Nvshmem::is_forked();
        let mut life = match LIFE.try_lock() {
            Ok(life) => life,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) if !forked => LIFE.lock().unwrap_or_else(PoisonError::into_inner),
            Err(TryLockError::WouldBlock) => return Err(busy(call, STARTING)),
        };
        let (met, refused) = match &*life {
            Life::Idle => match can_still_start(call) {
                Ok(()) => {
                    *life = Life::Starting(arguments.meeting());
                    return Ok(Begun::Start(Self { call, outcome: Some(Life::Idle) }));
                }
                Err(gave_up) => (None, gave_up),
            },
            Life::Starting(met) => (Some(*met), busy(call, STARTING)),
            Life::Ending(running) => (Some(running.arguments.meeting()), busy(call, ENDING)),
            Life::Live(running) => match running.alive(call).and_then(|()| same(call, &running.arguments, arguments)) {
                Ok(()) => return Ok(Begun::Running(Context::handle(running))),
                Err(other) => (Some(running.arguments.meeting()), other),
            },
            Life::Over(state) => (None, NvshmemError::Dead { call, state: state.clone() }),
        };
        if forked || met == Some(arguments.meeting()) { Err(refused) } else { Ok(Begun::Refused(refused)) }
    }

    fn run(
        mut self,
        Ready { nvshmem, worker, stream, side }: Ready,
        inside: Sent,
        way: Way,
        device: &Arc<CudaContext>,
        arguments: Arguments,
        world: Option<&Arc<Rendezvous>>,
    ) -> Result<Context, NvshmemError> {
        const FUNCTION: &str = "nvshmemx_hostlib_init_attr";
        let call = self.call;
        nvshmem.not_forked(call)?;
        let began = Instant::now();
        let life = if let Way::Id(id, ..) = &way { number_of(id) } else { 0 };
        if let Some(world) = world {
            // Who does not get so far is missing for those who wait.
            world.put(&began_key(life, world.pe()), b"began").map_err(NvshmemError::bootstrap(call))?;
        }
        let environment = arguments.settings.apply();
        // From here on NVSHMEM cannot be started again if it fails.
        self.outcome = Some(Life::Over(DeadState::InitFailed));
        let (context, ordinal) = (Arc::clone(device), device.ordinal());
        let limit = arguments.settings.deadline_set();
        let answer = worker.run(inside, limit, move || -> Result<_, NvshmemError> {
            bind_if_needed(&context)?;
            let place = call_init(nvshmem, &way, ordinal)?;
            match nvshmem.status()? {
                Status::Initialized | Status::FullSharing => Ok(place),
                // Half of NVSHMEM's calls end the process where PEs share a GPU without MPS: better
                // it ends at once.
                Status::LimitedSharing => {
                    let _ = nvshmem.code("nvshmemx_hostlib_finalize", |api| {
                        // SAFETY: NVSHMEM was initialised just now, nothing of it is used, and all
                        // PEs find the same.
                        unsafe { api.nvshmemx_hostlib_finalize() }
                    });
                    Err(PreflightError::NotAlone { pe: Pe::new(place.0), device: ordinal }.into())
                }
                // It says success where the PEs have met and nothing else went well. Its next call
                // would try again, on this PE alone, and end the process.
                status => {
                    let detail =
                        format!("NVSHMEM gave up after the PEs had met ({status:?}); with NVSHMEM_DEBUG=INFO it prints why");
                    Err(nvshmem.failure(FUNCTION, None, detail))
                }
            }
        });
        let result = match answer {
            Ok((result, _inside)) => {
                environment.restore();
                result
            }
            Err(error) => {
                environment.leave();
                self.outcome = Some(Life::Over(DeadState::Stuck { inside: FUNCTION }));
                let world = world.map(|world| (&**world, missing(world, life)));
                return Err(no_answer(call, FUNCTION, error, world));
            }
        };
        let (pe, n_pes) = result?;
        if let Some(asked) = arguments.place.filter(|asked| *asked != (pe, n_pes)) {
            let detail = format!("PE {pe} of {n_pes}, where PE {} of {} was asked for", asked.0, asked.1);
            return Err(nvshmem.failure(FUNCTION, None, detail));
        }
        tracing::debug!(pe, n_pes, took = ?began.elapsed(), version = %nvshmem.version(), "NVSHMEM started");
        let parts = Parts {
            nvshmem,
            context: Arc::clone(device),
            stream,
            side,
            pe: Pe::new(pe),
            n_pes,
            deadline: arguments.settings.deadline_set(),
            world: world.map(Arc::clone),
            life,
            entry: Entry::new(Arc::clone(&GATE), worker),
        };
        let context = Context::adopt(parts, arguments);
        self.outcome = Some(Life::Live(Arc::clone(&context.running)));
        drop(self);
        Ok(context)
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome.take() {
            *LIFE.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
        }
    }
}

fn begin_alone(call: &'static str, way: Way, device: &Arc<CudaContext>, arguments: Arguments) -> Result<Context, NvshmemError> {
    let start = match Start::begin(call, &arguments)? {
        Begun::Running(context) => return Ok(context),
        Begun::Start(start) => start,
        Begun::Refused(error) => return Err(error),
    };
    let nvshmem = Nvshmem::load()?;
    arguments.settings.check_read(call)?;
    let met = match way {
        Way::Id(..) => Met::Id,
        Way::Mpi(_) => Met::Mpi,
        Way::Launcher => Met::Launcher,
    };
    preflight::local(nvshmem, device, &arguments.settings, met)?;
    let ready = Ready::new(call, nvshmem, device, &arguments.settings)?;
    let inside = enter(call, arguments.settings.deadline_set())?;
    start.run(ready, inside, way, device, arguments, None)
}

const STARTING: &str = "another thread is starting NVSHMEM, which is one for each process";
const ENDING: &str = "another thread is ending NVSHMEM, which is one for each process";

fn busy(call: &'static str, why: &'static str) -> NvshmemError {
    NvshmemError::misuse(call, MisuseKind::Context { why })
}

/// An error that names the first argument in which two initialisations differ.
fn same(call: &'static str, running: &Arguments, asked: &Arguments) -> Result<(), NvshmemError> {
    let differ = |what, found: String, asked: String| {
        Err(NvshmemError::misuse(call, MisuseKind::AlreadyInitialized { what, found, asked }))
    };
    let place = |place: Option<(u32, u32)>| place.map_or("none".to_owned(), |(pe, n_pes)| format!("PE {pe} of {n_pes}"));
    if running.way != asked.way {
        return differ("the bootstrap", running.way.to_owned(), asked.way.to_owned());
    }
    if running.place != asked.place {
        return differ("the place", place(running.place), place(asked.place));
    }
    if running.which != asked.which {
        let what = match running.way {
            "an id" => "the id",
            "MPI" => "the communicator",
            _ => "the rendezvous",
        };
        let short = |number: u64| format!("#{:08x}", number as u32);
        return differ(what, short(running.which), short(asked.which));
    }
    if running.device != asked.device {
        return differ("the device", running.device.to_string(), asked.device.to_string());
    }
    if running.settings != asked.settings {
        let text = |settings: &Settings| {
            let variables = settings.variables().map(|(name, value)| format!("{name}={value}, "));
            format!("{}a deadline of {:?}", variables.collect::<String>(), settings.deadline_set())
        };
        return differ("the settings", text(&running.settings), text(&asked.settings));
    }
    Ok(())
}

/// Starts it. Gives this PE and how many there are.
fn call_init(nvshmem: Nvshmem, way: &Way, device: usize) -> Result<(u32, u32), NvshmemError> {
    const FUNCTION: &str = "nvshmemx_hostlib_init_attr";
    let mut attr = nvshmemx_init_attr_t::unset(nvshmem.version());
    if nvshmem.version().at_least(sys::INIT_LAYOUT_2) {
        attr.args.cuda_device_id = device as i32;
    }
    // The id must stay where it is until initialisation is over.
    let mut raw_id;
    let flags = match way {
        Way::Id(id, pe, n_pes) => {
            raw_id = id.to_raw();
            attr.args.uid_args.id = &raw mut raw_id;
            attr.args.uid_args.myrank = *pe as i32;
            attr.args.uid_args.nranks = *n_pes as i32;
            sys::NVSHMEMX_INIT_WITH_UNIQUEID
        }
        Way::Mpi(communicator) => {
            attr.mpi_comm = std::ptr::with_exposed_provenance_mut(*communicator);
            sys::NVSHMEMX_INIT_WITH_MPI_COMM
        }
        Way::Launcher => 0,
    };
    // SAFETY: the struct is stamped for this library, and it and the id live until the call is
    // over; the device's context is current.
    let code = nvshmem.code(FUNCTION, |api| unsafe { api.nvshmemx_hostlib_init_attr(flags, &raw mut attr) })?;
    nvshmem.check(FUNCTION, code)?;
    // SAFETY: NVSHMEM is initialised.
    let (pe, n_pes) = nvshmem.code("nvshmem_my_pe", |api| unsafe { Ok((api.nvshmem_my_pe()?, api.nvshmem_n_pes()?)) })?;
    match (u32::try_from(pe), u32::try_from(n_pes)) {
        (Ok(pe), Ok(n_pes)) if pe < n_pes => Ok((pe, n_pes)),
        _ => Err(nvshmem.failure("nvshmem_my_pe", None, format!("PE {pe} of {n_pes}"))),
    }
}

fn began_key(life: u64, pe: Pe) -> String {
    format!("peerweave-nvshmem/{life:016x}/began/{}", pe.get())
}

/// Who has not even begun.
fn missing(world: &Rendezvous, life: u64) -> Vec<Pe> {
    let pes = (0..world.n_pes()).map(Pe::new);
    pes.filter(|pe| matches!(world.try_get(&began_key(life, *pe)), Ok(None))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_init_names_the_argument_that_differs() {
        let running =
            Arguments { way: "an id", place: Some((0, 2)), which: 7, device: 0, settings: Settings::default().max_teams(8) };
        let differs = |change: fn(&mut Arguments)| {
            let mut asked = running.clone();
            change(&mut asked);
            same("test", &running, &asked).expect_err("they differ").to_string()
        };
        assert!(differs(|asked| asked.device = 1).contains("the device 0, not 1"));
        assert!(differs(|asked| asked.which = 8).contains("the id #00000007, not #00000008"));
        assert!(differs(|asked| asked.place = Some((1, 2))).contains("the place PE 0 of 2, not PE 1 of 2"));
        assert!(differs(|asked| asked.settings = Settings::default()).contains("NVSHMEM_MAX_TEAMS=8"));
        assert!(same("test", &running, &running.clone()).is_ok());
    }
}
