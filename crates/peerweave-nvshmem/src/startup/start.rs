//! Starts NVSHMEM by a rendezvous, an id, MPI or a launcher.
//!
//! Invariant: this module does not initialise NVSHMEM while NVSHMEM runs, while another thread
//! initialises NVSHMEM, or after an initialisation has failed inside NVSHMEM.

use std::ffi::c_void;
use std::sync::Arc;

use peerweave_bootstrap::{Rendezvous, interface};
use peerweave_driver::CudaContext;
use peerweave_types::Pe;

use super::attempt::{Begun, Bootstrapping, Start};
use super::interface as asked_interface;
use super::preflight::{self, BootstrapKind, StartInfo};
use super::ready::{Ready, can_still_start, enter, make_id, number_of, start_worker};
use super::unique_id::UniqueId;
use super::verdict::Readiness;
use crate::context::{Arguments, Context};
use crate::error::{MisuseKind, NvshmemError, PreflightError};
use crate::library::{Nvshmem, Settings, plugins};

impl Context {
    /// Starts NVSHMEM on the PEs of a rendezvous. Each PE has the same number in NVSHMEM as in the
    /// rendezvous. Most programs use this bootstrap.
    ///
    /// The PEs first exchange data about their libraries, settings and GPUs. Before NVSHMEM is
    /// initialised, every PE gets an error if a PE cannot start. Every PE also gets an error if two
    /// PEs have different libraries, have different settings, or share a GPU.
    ///
    /// The rendezvous distributes the id. Unless the settings select a network interface, NVSHMEM
    /// uses the network interface of the rendezvous. The context keeps the rendezvous for later
    /// setup calls. Setup calls count as collective calls of the rendezvous. Every PE must make all
    /// collective calls of the rendezvous in the same order.
    ///
    /// If NVSHMEM already runs in this process with the same arguments, this call returns a new
    /// handle without communication. If the process of any PE has a context with different
    /// arguments, or cannot start NVSHMEM again, every PE gets an error.
    ///
    /// `device` is the device that this PE uses. Each PE must use a different device.
    ///
    /// # Collective
    /// All PEs of the rendezvous must make this call.
    ///
    /// # Errors
    /// [`NvshmemError::Preflight`], [`NvshmemError::Plugin`] or [`NvshmemError::Load`] if NVSHMEM
    /// cannot work on this machine or in this job. [`NvshmemError::Bootstrap`] or
    /// [`NvshmemError::Timeout`] if a PE does not arrive. These errors name the missing PEs if they
    /// are known. [`MisuseKind::AlreadyInitialized`] if this process has a context with different
    /// arguments.
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
        // If this PE has an error, it sends the error in place of its data, so that the other PEs
        // do not wait.
        let able = refused.and_then(|()| arguments.settings.check(CALL));
        let own = able.and_then(|()| greeting(CALL, &arguments, device));
        let text = match &own {
            Ok((_, card)) => card.to_text(),
            Err(error) => format!("error\t{error}"),
        };
        let all = rendezvous.exchange("peerweave-nvshmem/init", text.as_bytes()).map_err(NvshmemError::bootstrap(CALL));
        let (ready, _) = own?;
        let cards: Vec<_> = all?.iter().map(|text| StartInfo::from_text(&String::from_utf8_lossy(text))).collect();
        // All PEs have the same data. They get the same result, and make the same decision about
        // the second exchange.
        preflight::together(pe, &cards)?;
        // Each PE checks separately which GPUs it can access. A PE that cannot start must not leave
        // the others waiting inside NVSHMEM, so the outcome is exchanged too. PE 0 sends the id
        // with its outcome. The id is created only now: NVSHMEM then reads its settings once for
        // all calls, and they have been compared.
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
            return Err(PreflightError::Peer { pe: Pe::new(0), reason: "the PE sent no id".to_owned() }.into());
        };
        let start = start.expect("`from_rendezvous` has already returned the error of a refused start");
        start.run(ready, inside, Bootstrapping::Id(id, pe.get(), n_pes), device, arguments, Some(rendezvous))
    }

    /// Creates an id for [`from_unique_id`](Self::from_unique_id). The call loads a plug-in and
    /// opens a socket in this process. The socket listens until the PEs are connected.
    ///
    /// `settings` selects the network interface. NVSHMEM reads all of its settings in this call,
    /// and only once in a process. The call that starts NVSHMEM in this process must therefore pass
    /// the same settings.
    ///
    /// # Errors
    /// [`MisuseKind::AlreadyInitialized`] if NVSHMEM has read different settings.
    /// [`DeadState::InitFailed`](crate::DeadState::InitFailed) if an earlier attempt to create an
    /// id has failed. [`NvshmemError::Plugin`] or [`NvshmemError::Load`] if a plug-in or the
    /// library is missing or cannot be loaded. [`NvshmemError::Nvshmem`] if there is no usable
    /// interface. [`NvshmemError::Timeout`] if NVSHMEM does not return by the deadline.
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

    /// Starts NVSHMEM in this process, which becomes the PE `pe` of a job with `n_pes` PEs. The
    /// caller must have sent the id to all PEs.
    ///
    /// # Collective
    /// All `n_pes` PEs must make this call with the same id.
    ///
    /// # Errors
    /// [`MisuseKind::Pe`] if `pe` is not less than `n_pes`. Other errors are the same as for
    /// [`from_rendezvous`](Self::from_rendezvous), with one exception: before NVSHMEM is called,
    /// this call does not detect missing PEs, different libraries or shared GPUs. In these cases,
    /// the call may time out.
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

    /// Starts NVSHMEM on the processes of an MPI communicator. The rank of a process in the
    /// communicator is its PE number.
    ///
    /// # Collective
    /// All processes of the communicator must make this call.
    ///
    /// # Errors
    /// [`NvshmemError::Plugin`] if a plug-in cannot be loaded, for example because it was built for
    /// a different MPI library. Other errors are the same as for
    /// [`from_unique_id`](Self::from_unique_id).
    ///
    /// # Safety
    /// `communicator` must point to an `MPI_Comm` of the MPI library to which NVSHMEM's plug-in is
    /// linked. MPI must be initialised, and must allow calls by threads other than the main thread
    /// (at least `MPI_THREAD_SERIALIZED`). MPI must not be finalised, and the communicator must not
    /// be freed, before NVSHMEM has been finalised. If this call times out, MPI and the
    /// communicator must live until the process ends.
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

    /// Starts NVSHMEM on the processes that a launcher has started. By default, the PEs connect
    /// through a service of the launcher. `NVSHMEM_BOOTSTRAP_PMI` selects PMI, PMI-2 or PMIx.
    /// `NVSHMEM_BOOTSTRAP` can select MPI or OpenSHMEM instead.
    ///
    /// # Collective
    /// All processes of the job must make this call.
    ///
    /// # Errors
    /// [`NvshmemError::Plugin`] if a plug-in cannot be loaded, for example because it was built for
    /// a different PMIx version. [`NvshmemError::Nvshmem`] if no launcher has started the process.
    /// Other errors are the same as for [`from_unique_id`](Self::from_unique_id).
    pub fn from_launcher(device: &Arc<CudaContext>, settings: Settings) -> Result<Self, NvshmemError> {
        const CALL: &str = "Context::from_launcher";
        settings.check(CALL)?;
        let arguments = arguments("the launcher", None, 0, device, settings);
        begin_alone(CALL, Bootstrapping::Launcher, device, arguments)
    }
}

fn arguments(
    bootstrap: &'static str,
    place: Option<(u32, u32)>,
    identity: u64,
    device: &Arc<CudaContext>,
    settings: Settings,
) -> Arguments {
    Arguments { bootstrap, place, identity, device: device.ordinal(), settings: settings.with_switch() }
}

/// Adds the network interface of the rendezvous to the settings, unless the settings already select
/// an interface.
fn with_interface(settings: Settings) -> Settings {
    let asked = std::env::var(peerweave_bootstrap::env::names::INTERFACE).ok();
    let chosen = interface::advertise_address(asked.as_deref()).ok();
    let family = chosen.as_ref().filter(|chosen| chosen.address.is_ipv6()).map(|_| "AF_INET6".to_owned());
    settings
        // The `=` makes NVSHMEM match the exact name instead of a prefix.
        .or("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", || chosen.map(|chosen| format!("={}", chosen.name)))
        .or("NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY", || family)
}

fn greeting(call: &'static str, arguments: &Arguments, device: &Arc<CudaContext>) -> Result<(Ready, StartInfo), NvshmemError> {
    let nvshmem = Nvshmem::load()?;
    arguments.settings.check_read(call)?;
    let card = preflight::local(nvshmem, device, &arguments.settings, BootstrapKind::Id)?;
    Ok((Ready::new(call, nvshmem, device, &arguments.settings)?, card))
}

fn begin_alone(
    call: &'static str,
    bootstrap: Bootstrapping,
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
    let met = match bootstrap {
        Bootstrapping::Id(..) => BootstrapKind::Id,
        Bootstrapping::Mpi(_) => BootstrapKind::Mpi,
        Bootstrapping::Launcher => BootstrapKind::Launcher,
    };
    preflight::local(nvshmem, device, &arguments.settings, met)?;
    let ready = Ready::new(call, nvshmem, device, &arguments.settings)?;
    let inside = enter(call, arguments.settings.deadline_set())?;
    start.run(ready, inside, bootstrap, device, arguments, None)
}
