//! Starts NVSHMEM by a rendezvous, an id, MPI or a launcher.
//!
//! Invariant: NVSHMEM is initialised once. During the initialisation and after a failed one,
//! another attempt is an error.

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
    /// [`DeadState::InitFailed`](crate::DeadState::InitFailed) if creating an id failed before.
    /// [`NvshmemError::Plugin`], [`NvshmemError::Load`], [`NvshmemError::Nvshmem`] if there is no
    /// usable interface, [`NvshmemError::Timeout`].
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
    bootstrap: &'static str,
    place: Option<(u32, u32)>,
    identity: u64,
    device: &Arc<CudaContext>,
    settings: Settings,
) -> Arguments {
    Arguments { bootstrap, place, identity, device: device.ordinal(), settings: settings.with_switch() }
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
