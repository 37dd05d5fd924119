//! Starts NVSHMEM by a rendezvous, an id, MPI or a launcher.
//!
//! Invariant: NVSHMEM is initialised once. During the initialisation and after a failed one,
//! another attempt is an error.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use peerweave_bootstrap::{Rendezvous, interface};
use peerweave_driver::{CudaContext, CudaError, CudaStream, PrivateStream, bind_if_needed};
use peerweave_types::Pe;

use super::interface as asked_interface;
use super::preflight::{self, BootstrapKind, StartInfo};
use super::unique_id::UniqueId;
use super::verdict::Readiness;
use crate::comm::Parts;
use crate::comm::enqueued::with_error_preserved;
use crate::comm::entry::Entry;
use crate::comm::gate::{Gate, NoAnswer, Sent, Worker};
use crate::comm::identity::{SEED, mix};
use crate::context::{Arguments, Context, LIFE, ProcessState};
use crate::error::{DeadState, MisuseKind, NvshmemError, PreflightError, Timeout};
use crate::library::{Nvshmem, Settings, Status, plugins};
use crate::sys::{self, nvshmemx_init_attr_t};

/// The gate of all calls of NVSHMEM in this process.
static GATE: LazyLock<Arc<Gate>> = LazyLock::new(Arc::default);

/// The kind of bootstrap, with its arguments.
enum Bootstrapping {
    /// By an id.
    Id(UniqueId, u32, u32),
    /// By MPI: the address of the communicator, which another thread of this process uses.
    Mpi(usize),
    /// By the launcher's environment.
    Launcher,
}

impl Context {
    /// Starts NVSHMEM among the PEs of a rendezvous, with the same PE numbers. This is the usual
    /// bootstrap.
    ///
    /// The PEs first exchange their data. If a PE cannot start, or has another library, other
    /// settings, or the GPU of another PE, every PE gets an error before NVSHMEM is called. The
    /// rendezvous distributes the id, and NVSHMEM uses its network interface. The context keeps the
    /// rendezvous for later setup calls. They count among the rendezvous' collective calls, whose
    /// order must be the same on every PE.
    ///
    /// If NVSHMEM already runs in this process with the same arguments, this returns another handle
    /// without communication. If a process has another context, or one that cannot be started
    /// again, every PE gets an error.
    ///
    /// `device` is the device of this PE; each PE needs its own.
    ///
    /// # Collective
    /// All PEs of the rendezvous.
    ///
    /// # Errors
    /// [`NvshmemError::Preflight`], [`NvshmemError::Plugin`], [`NvshmemError::Load`];
    /// [`NvshmemError::Bootstrap`] and [`NvshmemError::Timeout`] name the PEs that did not arrive;
    /// [`MisuseKind::AlreadyInitialized`] if a context with other arguments runs.
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
        // An error of this PE must not keep the others waiting, so it is sent in place of the data.
        let able = refused.and_then(|()| arguments.settings.check(CALL));
        let own = able.and_then(|()| greeting(CALL, &arguments, device));
        let text = match &own {
            Ok((_, card)) => card.to_text(),
            Err(error) => format!("error\t{error}"),
        };
        let all = rendezvous.exchange("peerweave-nvshmem/init", text.as_bytes()).map_err(NvshmemError::bootstrap(CALL));
        let (ready, _) = own?;
        let cards: Vec<_> = all?.iter().map(|text| StartInfo::from_text(&String::from_utf8_lossy(text))).collect();
        // All PEs have the same data, so the result is the same on all, and so is the decision to
        // exchange again.
        preflight::together(pe, &cards)?;
        // Each PE checks by itself which GPUs it can access, and a PE that cannot start must not
        // leave the others waiting inside NVSHMEM. So the outcome is exchanged too. PE 0 sends the
        // id with it. The id is created only now, because NVSHMEM then reads its settings once for
        // all, and they have been compared.
        let reached = preflight::reachable(pe, &cards, device, &arguments.settings);
        let id = reached.and_then(|()| match pe.get() {
            0 => make_id(CALL, ready.nvshmem, &arguments.settings, &ready.worker).map(Some),
            _ => Ok(None),
        });
        let inside = id.and_then(|id| Ok((id, enter(CALL, arguments.settings.deadline_set())?)));
        let text = match &inside {
            Ok((id, _)) => Readiness::Ready(*id).to_text(),
            Err(error) => Readiness::Cannot(error.to_string()).to_text(),
        };
        let verdicts =
            rendezvous.exchange("peerweave-nvshmem/checked", text.as_bytes()).map_err(NvshmemError::bootstrap(CALL))?;
        let (_, inside) = inside?;
        let mut id = None;
        for (pe, text) in verdicts.iter().enumerate() {
            match Readiness::from_text(&String::from_utf8_lossy(text)) {
                Readiness::Ready(made) => id = id.or(made),
                Readiness::Cannot(reason) => return Err(PreflightError::Peer { pe: Pe::new(pe as u32), reason }.into()),
            }
        }
        let Some(id) = id else {
            return Err(PreflightError::Peer { pe: Pe::new(0), reason: "this PE sent no id".to_owned() }.into());
        };
        let start = start.expect("a PE that may not start has its own error");
        start.run(ready, inside, Bootstrapping::Id(id, pe.get(), n_pes), device, arguments, Some(rendezvous))
    }

    /// Creates an id for [`from_unique_id`](Self::from_unique_id). Loads a plug-in, and opens a
    /// socket in this process that listens until the PEs are connected.
    ///
    /// `settings` selects the network interface. NVSHMEM reads all of its settings in this call,
    /// once in this process, so the start must use the same settings.
    ///
    /// # Errors
    /// [`MisuseKind::AlreadyInitialized`] if NVSHMEM has read other settings;
    /// [`DeadState::InitFailed`] if creating an id failed before. [`NvshmemError::Plugin`],
    /// [`NvshmemError::Load`], [`NvshmemError::Nvshmem`] if there is no usable interface,
    /// [`NvshmemError::Timeout`].
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

    /// Starts NVSHMEM as PE `pe` of `n_pes`. The caller distributes the id to all of them.
    ///
    /// # Collective
    /// All `n_pes` PEs.
    ///
    /// # Errors
    /// As for [`from_rendezvous`](Self::from_rendezvous), but missing PEs, different libraries and
    /// shared GPUs are not detected: the call times out.
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
        begin_alone(CALL, Bootstrapping::Id(id, pe.get(), n_pes), device, arguments)
    }

    /// Starts NVSHMEM among the processes of an MPI communicator, with its ranks as PEs.
    ///
    /// # Collective
    /// All processes of the communicator.
    ///
    /// # Errors
    /// As for [`from_unique_id`](Self::from_unique_id). [`NvshmemError::Plugin`] also for a plug-in
    /// that cannot be loaded, such as one for another MPI.
    ///
    /// # Safety
    /// `communicator` points to an `MPI_Comm` of the MPI to which NVSHMEM's plug-in is linked. MPI
    /// is initialised and allows calls by threads other than the main one (at least
    /// `MPI_THREAD_SERIALIZED`). Both live until NVSHMEM is finalised or, if this call times out,
    /// until the process ends.
    pub unsafe fn from_mpi(
        communicator: *mut c_void,
        device: &Arc<CudaContext>,
        settings: Settings,
    ) -> Result<Self, NvshmemError> {
        const CALL: &str = "Context::from_mpi";
        settings.check(CALL)?;
        let arguments = arguments("MPI", None, communicator.addr() as u64, device, settings);
        begin_alone(CALL, Bootstrapping::Mpi(communicator.expose_provenance()), device, arguments)
    }

    /// Starts NVSHMEM among the processes of a launcher, by the launcher's own service: PMI, PMI-2
    /// or PMIx (`NVSHMEM_BOOTSTRAP`, `NVSHMEM_BOOTSTRAP_PMI`).
    ///
    /// # Collective
    /// All processes of the job.
    ///
    /// # Errors
    /// As for [`from_unique_id`](Self::from_unique_id). [`NvshmemError::Plugin`] also for a plug-in
    /// that cannot be loaded, such as one for another PMIx. If no launcher started the process, the
    /// error is that of NVSHMEM.
    pub fn from_launcher(device: &Arc<CudaContext>, settings: Settings) -> Result<Self, NvshmemError> {
        const CALL: &str = "Context::from_launcher";
        settings.check(CALL)?;
        let arguments = arguments("the launcher", None, 0, device, settings);
        begin_alone(CALL, Bootstrapping::Launcher, device, arguments)
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

/// Returns a number that identifies an id without disclosing it.
fn number_of(id: &UniqueId) -> u64 {
    id.to_bytes().iter().fold(SEED, |hash, byte| mix(hash, (*byte).into()))
}

/// Selects the network interface of the job for NVSHMEM.
fn with_interface(settings: Settings) -> Settings {
    let asked = std::env::var(peerweave_bootstrap::env::names::INTERFACE).ok();
    let chosen = interface::advertise_address(asked.as_deref()).ok();
    let family = chosen.as_ref().filter(|chosen| chosen.address.is_ipv6()).map(|_| "AF_INET6".to_owned());
    settings
        // Without `=` the name would be a prefix.
        .or("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", || chosen.map(|chosen| format!("={}", chosen.name)))
        .or("NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY", || family)
}

fn start_worker(call: &'static str) -> Result<Worker, NvshmemError> {
    Worker::start().map_err(|error| {
        tracing::error!(%error, "cannot start the thread for NVSHMEM");
        NvshmemError::misuse(call, MisuseKind::Context { why: "the operating system cannot start a thread" })
    })
}

fn greeting(call: &'static str, arguments: &Arguments, device: &Arc<CudaContext>) -> Result<(Ready, StartInfo), NvshmemError> {
    let nvshmem = Nvshmem::load()?;
    arguments.settings.check_read(call)?;
    let card = preflight::local(nvshmem, device, &arguments.settings, BootstrapKind::Id)?;
    Ok((Ready::new(call, nvshmem, device, &arguments.settings)?, card))
}

/// The resources of this process that an initialisation needs. They are acquired before this PE
/// reports to the others that it is ready.
struct Ready {
    nvshmem: Nvshmem,
    worker: Worker,
    stream: Arc<CudaStream>,
    side: PrivateStream,
}

impl Ready {
    fn new(call: &'static str, nvshmem: Nvshmem, device: &Arc<CudaContext>, settings: &Settings) -> Result<Self, NvshmemError> {
        let (worker, context) = (start_worker(call)?, Arc::clone(device));
        // The caller gets this stream too, so it is one of cudarc's; cudarc's first `new_stream`
        // waits for the whole device without a deadline.
        let made = worker.run((), settings.deadline_set(), move || with_error_preserved(&context, || context.new_stream()));
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
        // SAFETY: the pointer is to a live struct with the version of its layout.
        nvshmem.code(FUNCTION, |api| unsafe { api.nvshmemx_get_uniqueid(&raw mut id) }).map(|code| (code, id))
    });
    match made {
        Ok((result, _inside)) => {
            environment.restore();
            let (code, id) = result?;
            nvshmem.check(FUNCTION, code).inspect_err(|_| ID_FAILED.store(true, Ordering::Relaxed))?;
            Ok(UniqueId::from_raw(&id))
        }
        Err(error) => {
            environment.leave();
            Err(no_answer(call, FUNCTION, error, None))
        }
    }
}

/// Whether creating an id has failed. NVSHMEM has then freed its plug-in, and may free it again at
/// the next attempt (3.4.5).
static ID_FAILED: AtomicBool = AtomicBool::new(false);

fn can_still_start(call: &'static str) -> Result<(), NvshmemError> {
    if ID_FAILED.load(Ordering::Relaxed) { Err(NvshmemError::Dead { call, state: DeadState::InitFailed }) } else { Ok(()) }
}

/// Acquires the gate of this process.
fn enter(call: &'static str, patience: Duration) -> Result<Sent, NvshmemError> {
    let start = Instant::now();
    let inside = GATE.enter(call, patience).map_err(|inside| {
        tracing::warn!(call, inside, "timed out: another call is still inside NVSHMEM");
        // It is not known here whether that call will return; its own context reports it.
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

/// An initialisation in progress. It ends in a context, or in the state that it cannot be repeated.
/// If NVSHMEM was not called, it ends in the previous state.
struct Start {
    call: &'static str,
    outcome: Option<ProcessState>,
}

enum Begun {
    /// Another handle of the running context.
    Running(Context),
    Start(Start),
    /// This process cannot start. Other PEs may be waiting for it at the rendezvous.
    Refused(NvshmemError),
}

impl Start {
    /// Begins an initialisation, unless this process cannot start.
    ///
    /// # Errors
    /// Errors that must not be sent to other PEs, because this PE is in another call with them.
    fn begin(call: &'static str, arguments: &Arguments) -> Result<Begun, NvshmemError> {
        // In a forked child, a thread that does not exist may hold the lock.
        let forked = Nvshmem::is_forked();
        let mut life = match LIFE.try_lock() {
            Ok(life) => life,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) if !forked => LIFE.lock().unwrap_or_else(PoisonError::into_inner),
            Err(TryLockError::WouldBlock) => return Err(busy(call, STARTING)),
        };
        let (met, refused) = match &*life {
            ProcessState::Idle => match can_still_start(call) {
                Ok(()) => {
                    *life = ProcessState::Starting(arguments.meeting());
                    return Ok(Begun::Start(Self { call, outcome: Some(ProcessState::Idle) }));
                }
                Err(gave_up) => (None, gave_up),
            },
            ProcessState::Starting(met) => (Some(*met), busy(call, STARTING)),
            ProcessState::Ending(running) => (Some(running.arguments.meeting()), busy(call, ENDING)),
            ProcessState::Live(running) => {
                match running.check_usable(call).and_then(|()| same(call, &running.arguments, arguments)) {
                    Ok(()) => return Ok(Begun::Running(Context::handle(running))),
                    Err(other) => (Some(running.arguments.meeting()), other),
                }
            }
            ProcessState::Over(state) => (None, NvshmemError::Dead { call, state: state.clone() }),
        };
        if forked || met == Some(arguments.meeting()) { Err(refused) } else { Ok(Begun::Refused(refused)) }
    }

    fn run(
        mut self,
        Ready { nvshmem, worker, stream, side }: Ready,
        inside: Sent,
        way: Bootstrapping,
        device: &Arc<CudaContext>,
        arguments: Arguments,
        world: Option<&Arc<Rendezvous>>,
    ) -> Result<Context, NvshmemError> {
        const FUNCTION: &str = "nvshmemx_hostlib_init_attr";
        let call = self.call;
        nvshmem.not_forked(call)?;
        let began = Instant::now();
        let life = if let Bootstrapping::Id(id, ..) = &way { number_of(id) } else { 0 };
        if let Some(world) = world {
            // The PEs that wait report a PE that returns here as missing.
            world.put(&began_key(life, world.pe()), b"began").map_err(NvshmemError::bootstrap(call))?;
        }
        let environment = arguments.settings.apply();
        // From here on NVSHMEM cannot be started again if it fails.
        self.outcome = Some(ProcessState::Over(DeadState::InitFailed));
        let (context, ordinal) = (Arc::clone(device), device.ordinal());
        let limit = arguments.settings.deadline_set();
        let answer = worker.run(inside, limit, move || -> Result<_, NvshmemError> {
            bind_if_needed(&context)?;
            let place = call_init(nvshmem, &way, ordinal)?;
            match nvshmem.status()? {
                Status::Initialized | Status::FullSharing => Ok(place),
                // If PEs share a GPU without MPS, half of NVSHMEM's calls end the process, so
                // NVSHMEM is ended now.
                Status::LimitedSharing => {
                    let _ = nvshmem.code("nvshmemx_hostlib_finalize", |api| {
                        // SAFETY: NVSHMEM was just initialised, nothing of it is used, and all PEs
                        // find the same.
                        unsafe { api.nvshmemx_hostlib_finalize() }
                    });
                    Err(PreflightError::NotAlone { pe: Pe::new(place.0), device: ordinal }.into())
                }
                // NVSHMEM returns success if only the connection of the PEs succeeded. Its next
                // call would try again on this PE alone, and end the process.
                status => {
                    let detail = format!(
                        "NVSHMEM failed after the PEs were connected ({status:?}); with NVSHMEM_DEBUG=INFO it prints the reason"
                    );
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
                self.outcome = Some(ProcessState::Over(DeadState::Stuck { inside: FUNCTION }));
                let world = world.map(|world| (&**world, missing(world, life)));
                return Err(no_answer(call, FUNCTION, error, world));
            }
        };
        let (pe, n_pes) = result?;
        if let Some(asked) = arguments.place.filter(|asked| *asked != (pe, n_pes)) {
            let detail = format!("PE {pe} of {n_pes}, expected PE {} of {}", asked.0, asked.1);
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
        self.outcome = Some(ProcessState::Live(Arc::clone(&context.running)));
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

fn begin_alone(
    call: &'static str,
    way: Bootstrapping,
    device: &Arc<CudaContext>,
    arguments: Arguments,
) -> Result<Context, NvshmemError> {
    let start = match Start::begin(call, &arguments)? {
        Begun::Running(context) => return Ok(context),
        Begun::Start(start) => start,
        Begun::Refused(error) => return Err(error),
    };
    let nvshmem = Nvshmem::load()?;
    arguments.settings.check_read(call)?;
    let met = match way {
        Bootstrapping::Id(..) => BootstrapKind::Id,
        Bootstrapping::Mpi(_) => BootstrapKind::Mpi,
        Bootstrapping::Launcher => BootstrapKind::Launcher,
    };
    preflight::local(nvshmem, device, &arguments.settings, met)?;
    let ready = Ready::new(call, nvshmem, device, &arguments.settings)?;
    let inside = enter(call, arguments.settings.deadline_set())?;
    start.run(ready, inside, way, device, arguments, None)
}

const STARTING: &str = "another thread is starting NVSHMEM; a process has one NVSHMEM";
const ENDING: &str = "another thread is ending NVSHMEM; a process has one NVSHMEM";

fn busy(call: &'static str, why: &'static str) -> NvshmemError {
    NvshmemError::misuse(call, MisuseKind::Context { why })
}

/// Fails with the first argument in which two initialisations differ.
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

/// Calls NVSHMEM's initialisation. Returns this PE and the number of PEs.
fn call_init(nvshmem: Nvshmem, way: &Bootstrapping, device: usize) -> Result<(u32, u32), NvshmemError> {
    const FUNCTION: &str = "nvshmemx_hostlib_init_attr";
    let mut attr = nvshmemx_init_attr_t::unset(nvshmem.version());
    if nvshmem.version().at_least(sys::INIT_LAYOUT_2) {
        attr.args.cuda_device_id = device as i32;
    }
    // The id must not move until the initialisation has returned.
    let mut raw_id;
    let flags = match way {
        Bootstrapping::Id(id, pe, n_pes) => {
            raw_id = id.to_raw();
            attr.args.uid_args.id = &raw mut raw_id;
            attr.args.uid_args.myrank = *pe as i32;
            attr.args.uid_args.nranks = *n_pes as i32;
            sys::NVSHMEMX_INIT_WITH_UNIQUEID
        }
        Bootstrapping::Mpi(communicator) => {
            attr.mpi_comm = std::ptr::with_exposed_provenance_mut(*communicator);
            sys::NVSHMEMX_INIT_WITH_MPI_COMM
        }
        Bootstrapping::Launcher => 0,
    };
    // SAFETY: the struct has the layout of this library's version, and it and the id live until the
    // call has returned; the device's context is current.
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

/// Returns the PEs that have not started.
fn missing(world: &Rendezvous, life: u64) -> Vec<Pe> {
    let pes = (0..world.n_pes()).map(Pe::new);
    pes.filter(|pe| matches!(world.try_get(&began_key(life, *pe)), Ok(None))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_init_error_names_the_argument_that_differs() {
        let running =
            Arguments { way: "an id", place: Some((0, 2)), which: 7, device: 0, settings: Settings::default().max_teams(8) };
        let differs = |change: fn(&mut Arguments)| {
            let mut asked = running.clone();
            change(&mut asked);
            same("test", &running, &asked).expect_err("they differ").to_string()
        };
        assert!(differs(|asked| asked.device = 1).contains("the device 0, expected 1"));
        assert!(differs(|asked| asked.which = 8).contains("the id #00000007, expected #00000008"));
        assert!(differs(|asked| asked.place = Some((1, 2))).contains("the place PE 0 of 2, expected PE 1 of 2"));
        assert!(differs(|asked| asked.settings = Settings::default()).contains("NVSHMEM_MAX_TEAMS=8"));
        assert!(same("test", &running, &running.clone()).is_ok());
    }
}
