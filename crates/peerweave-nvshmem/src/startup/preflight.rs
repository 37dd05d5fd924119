//! Checks before NVSHMEM is called. On most errors, NVSHMEM only prints a message, and then ends
//! the process or hangs.
//!
//! Some problems cannot be detected: a broken network, a faulty switch fabric, memory that another
//! process allocates later, or a PE that dies inside NVSHMEM. Only the deadline limits the effect
//! of such a problem.
//!
//! Invariant: the checks change no state of NVSHMEM or of the device.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use peerweave_driver::cudarc::driver::sys::{CUdevice, CUdevice_attribute};
use peerweave_driver::{CudaContext, CudaError, Driver};
use peerweave_types::Pe;

use super::interface;
use crate::Version;
use crate::comm::enqueued::with_error_preserved;
use crate::error::{MisuseKind, NvshmemError, PreflightError};
use crate::library::{Nvshmem, Settings, Status, plugins};

/// Upper bound of the number of bytes that NVSHMEM uses in `/dev/shm` when NVSHMEM starts. NVSHMEM
/// uses one page for each PE on the machine.
#[cfg(target_os = "linux")]
const SHARED_MEMORY_BYTES: u64 = 1 << 20;

/// Major number of the oldest compute capability that NVSHMEM supports.
const OLDEST_GENERATION: i32 = 7;

/// The data that a PE sends to the other PEs before the PEs start NVSHMEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartInfo {
    pub(crate) version: Version,
    pub(crate) uuid: String,
    pub(crate) settings: String,
}

impl StartInfo {
    /// Returns the data as one line of text, which [`Self::from_text`] parses on the other PEs.
    pub(crate) fn to_text(&self) -> String {
        format!("ok\t{}\t{}\t{}", self.version, self.uuid, self.settings)
    }

    /// Parses a line that another PE sent. The line contains the data of that PE, or the reason why
    /// that PE cannot start. Returns such a reason as the error. Also returns an error if the line
    /// is invalid.
    pub(crate) fn from_text(text: &str) -> Result<Self, String> {
        if let Some(reason) = text.strip_prefix("error\t") {
            return Err(reason.to_owned());
        }
        let unreadable = || format!("the PE sent invalid start-up data: {text:?}");
        let [_, version, uuid, settings] = text.split('\t').collect::<Vec<_>>().try_into().map_err(|_| unreadable())?;
        let version = version.parse().map_err(|_| unreadable())?;
        Ok(Self { version, uuid: uuid.to_owned(), settings: settings.to_owned() })
    }
}

/// The kind of bootstrap by which the PEs will connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BootstrapKind {
    Id,
    Mpi,
    Launcher,
}

/// Checks this process and its machine. Returns the data that this PE will send to the other PEs.
pub(crate) fn local(
    nvshmem: Nvshmem,
    context: &Arc<CudaContext>,
    settings: &Settings,
    met: BootstrapKind,
) -> Result<StartInfo, NvshmemError> {
    let remote = settings.effective("NVSHMEM_REMOTE_TRANSPORT").unwrap_or_else(|| "ibrc".to_owned());
    functions(nvshmem)?;
    generation(context)?;
    check_not_initialized(nvshmem)?;
    match met {
        BootstrapKind::Id => {
            nvshmem.check_id_plugin(settings)?;
            nvshmem.check_transport(&remote)?;
            plugins::check(nvshmem, Some(plugins::OF_IDS), settings)?;
            interface::check(settings)?;
        }
        BootstrapKind::Mpi | BootstrapKind::Launcher => {
            nvshmem.check_transport(&remote)?;
            let plugin = if met == BootstrapKind::Mpi { plugins::of_mpi() } else { plugins::of_launcher(settings)? };
            plugins::check(nvshmem, plugin, settings)?;
        }
    }
    shared_memory()?;
    device_memory(context, settings)?;
    Ok(StartInfo { version: nvshmem.version(), uuid: uuid_of(context)?, settings: settings.symmetric_part() })
}

/// Checks that the library has the functions that every PE needs. If a PE detected a missing
/// function only after the start, the other PEs would wait for that PE inside NVSHMEM.
fn functions(nvshmem: Nvshmem) -> Result<(), NvshmemError> {
    const NEEDED: [&str; 12] = [
        "nvshmemx_get_uniqueid",
        "nvshmemx_hostlib_init_attr",
        "nvshmemx_hostlib_finalize",
        "nvshmem_my_pe",
        "nvshmem_n_pes",
        "nvshmem_malloc",
        "nvshmem_free",
        "nvshmem_ptr",
        "nvshmem_team_my_pe",
        "nvshmem_team_n_pes",
        "nvshmem_team_translate_pe",
        "nvshmemx_barrier_on_stream",
    ];
    match NEEDED.into_iter().find(|name| !nvshmem.has(name)) {
        Some(name) => Err(nvshmem.unsupported(name, Some(Version::new(3, 3, 0)))),
        None => Ok(()),
    }
}

/// Checks that NVSHMEM has kernels for the GPU. Without such kernels, NVSHMEM's first launch would
/// fail.
fn generation(context: &CudaContext) -> Result<(), NvshmemError> {
    use CUdevice_attribute::{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR};
    let (driver, device) = (Driver::get()?, context.ordinal());
    let major = driver.attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    if major >= OLDEST_GENERATION {
        return Ok(());
    }
    let minor = driver.attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Err(PreflightError::OldGpu { device, major, minor }.into())
}

/// Returns an error if other code in this process has initialised NVSHMEM or connected its PEs.
/// NVSHMEM only counts initialisations: a second one would succeed, but would use the PEs of the
/// first.
fn check_not_initialized(nvshmem: Nvshmem) -> Result<(), NvshmemError> {
    match nvshmem.status()? {
        // `Bootstrapped` is refused too: NVSHMEM would reuse the PEs that are already connected.
        Status::Bootstrapped | Status::Initialized | Status::LimitedSharing | Status::FullSharing => {
            let (found, asked) = ("by other code".to_owned(), "none".to_owned());
            let kind = MisuseKind::AlreadyInitialized { what: "an initialisation", found, asked };
            Err(NvshmemError::misuse("nvshmemx_init_status", kind))
        }
        _ => Ok(()),
    }
}

/// Returns the device's UUID in hexadecimal. The UUID is the same in every process.
pub(crate) fn uuid_of(context: &Arc<CudaContext>) -> Result<String, NvshmemError> {
    let uuid = with_error_preserved(context, || context.uuid()).map_err(CudaError::of("cuDeviceGetUuid_v2"))?;
    Ok(uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect())
}

/// Succeeds without a check, because this system has no `/dev/shm`.
#[cfg(not(target_os = "linux"))]
fn shared_memory() -> Result<(), NvshmemError> {
    Ok(())
}

#[cfg(target_os = "linux")]
fn shared_memory() -> Result<(), NvshmemError> {
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends in a zero byte, and the pointer is to memory for one struct.
    if unsafe { libc::statvfs(c"/dev/shm".as_ptr(), stat.as_mut_ptr()) } != 0 {
        // `/dev/shm` is not mounted. NVSHMEM will report this.
        return Ok(());
    }
    // SAFETY: the call succeeded, so the struct is filled in.
    let stat = unsafe { stat.assume_init() };
    let free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free_bytes < SHARED_MEMORY_BYTES {
        return Err(PreflightError::SharedMemory { free_bytes, needed_bytes: SHARED_MEMORY_BYTES }.into());
    }
    Ok(())
}

fn device_memory(context: &Arc<CudaContext>, settings: &Settings) -> Result<(), NvshmemError> {
    let (free, _) = with_error_preserved(context, || context.mem_get_info()).map_err(CudaError::of("cuMemGetInfo_v2"))?;
    let fixed = settings.is_on("NVSHMEM_DISABLE_CUDA_VMM");
    let (variable, default) = if fixed { ("NVSHMEM_SYMMETRIC_SIZE", 1 << 30) } else { ("NVSHMEM_CUMEM_GRANULARITY", 1 << 29) };
    // A value that this crate cannot parse is not checked: NVSHMEM reports it.
    let needed_bytes = settings.effective(variable).map_or(default, |_| settings.bytes(variable).unwrap_or(0));
    let free_bytes = free as u64;
    if free_bytes < needed_bytes {
        return Err(PreflightError::DeviceMemory { device: context.ordinal(), free_bytes, needed_bytes }.into());
    }
    Ok(())
}

/// Checks that all PEs can start, and have equal versions, equal settings and different GPUs.
pub(crate) fn together(own: Pe, cards: &[Result<StartInfo, String>]) -> Result<(), PreflightError> {
    let read = |(pe, card): (usize, &Result<StartInfo, String>)| match card {
        Ok(card) => Ok((Pe::new(pe as u32), card.clone())),
        Err(reason) => Err(PreflightError::Peer { pe: Pe::new(pe as u32), reason: reason.clone() }),
    };
    let cards: Vec<(Pe, StartInfo)> = cards.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    let ours = &cards[own.index()].1;
    if let Some((pe, card)) = cards.iter().find(|(_, card)| card.version != ours.version) {
        return Err(PreflightError::Versions { pe: *pe, theirs: card.version.to_string(), ours: ours.version });
    }
    if let Some((pe, card)) = cards.iter().find(|(_, card)| card.settings != ours.settings) {
        return Err(PreflightError::Settings { pe: *pe, theirs: card.settings.clone(), ours: ours.settings.clone() });
    }
    let mut by_uuid: BTreeMap<&str, Vec<Pe>> = BTreeMap::new();
    for (pe, card) in &cards {
        by_uuid.entry(&card.uuid).or_default().push(*pe);
    }
    match by_uuid.into_iter().find(|(_, pes)| pes.len() > 1) {
        Some((uuid, pes)) => Err(PreflightError::SharedGpu { pes, uuid: uuid.to_owned() }),
        None => Ok(()),
    }
}

/// Checks whether this PE can directly access the GPUs of all other PEs. If this PE cannot access a
/// GPU, logs a warning, because transfers to that GPU will use the network. If the settings disable
/// the network, returns an error. GPUs that are not visible to this process are not checked.
pub(crate) fn reachable(
    own: Pe,
    cards: &[Result<StartInfo, String>],
    context: &Arc<CudaContext>,
    settings: &Settings,
) -> Result<(), NvshmemError> {
    let remote_transport = settings.effective("NVSHMEM_REMOTE_TRANSPORT").unwrap_or_default();
    let no_p2p = settings.is_on("NVSHMEM_DISABLE_P2P");
    if cards.len() > 1 && no_p2p && remote_transport == "none" {
        let pe = Pe::new(u32::from(own.get() == 0));
        return Err(PreflightError::Unreachable { pe, device: context.ordinal() }.into());
    }
    let driver = Driver::get()?;
    let mut ordinals: BTreeMap<String, usize> = BTreeMap::new();
    for ordinal in 0..driver.device_count()? {
        // The driver is queried by ordinal, because a context on the other device would use memory
        // of that device.
        if let Ok(uuid) = peerweave_driver::cudarc::driver::result::device::get(ordinal as i32)
            .and_then(peerweave_driver::cudarc::driver::result::device::get_uuid)
        {
            ordinals.insert(uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect(), ordinal);
        }
    }
    let device = context.ordinal();
    for (pe, card) in cards.iter().enumerate().filter(|(pe, _)| *pe != own.index()) {
        let pe = Pe::new(pe as u32);
        // A device on another machine, or not visible to this process, cannot be checked.
        let Some(peer) = card.as_ref().ok().and_then(|card| ordinals.get(&card.uuid)) else { continue };
        let mut can = 0;
        // SAFETY: the pointer is to a live integer; the driver checks the ordinals.
        let code = unsafe { driver.api().cuDeviceCanAccessPeer(&raw mut can, device as CUdevice, *peer as CUdevice) };
        CudaError::check("cuDeviceCanAccessPeer", code.map_err(peerweave_driver::DriverError::from)?)?;
        if can == 0 {
            tracing::warn!(
                pe = pe.get(),
                device,
                peer,
                "the GPUs of this PE and of another PE cannot access each other directly; all transfers between them use the network"
            );
            if remote_transport == "none" {
                return Err(PreflightError::Unreachable { pe, device }.into());
            }
        }
    }
    Ok(())
}

impl fmt::Display for StartInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVSHMEM {} on {}", self.version, self.uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(uuid: &str) -> StartInfo {
        StartInfo { version: Version::new(3, 4, 5), uuid: uuid.to_owned(), settings: "NVSHMEM_MAX_TEAMS=7".to_owned() }
    }

    #[test]
    fn encoded_start_info_parses_to_the_same_value() {
        let own = card("ab");
        assert_eq!(StartInfo::from_text(&own.to_text()), Ok(own));
        assert_eq!(StartInfo::from_text("error\tno driver"), Err("no driver".to_owned()));
        assert!(StartInfo::from_text("ok\t3.4.5\tab\t\tmore").is_err());
        assert!(StartInfo::from_text("ok\tthree\tab\t").is_err());
        assert!(StartInfo::from_text("hello").is_err());
    }

    #[test]
    fn error_names_two_pes_that_share_a_gpu() {
        let error = together(Pe::new(1), &[Ok(card("a")), Ok(card("b")), Ok(card("a"))]).expect_err("the PEs share a GPU");
        assert_eq!(error, PreflightError::SharedGpu { pes: vec![Pe::new(0), Pe::new(2)], uuid: "a".to_owned() });
        assert_eq!(together(Pe::new(1), &[Ok(card("a")), Ok(card("b"))]), Ok(()));
    }

    #[test]
    fn pe_that_cannot_start_is_an_error_on_all_pes() {
        let error = together(Pe::new(0), &[Ok(card("a")), Err("no driver".to_owned())]).expect_err("PE 1 cannot start");
        assert_eq!(error, PreflightError::Peer { pe: Pe::new(1), reason: "no driver".to_owned() });
    }

    #[test]
    fn error_names_the_pe_with_a_different_version_or_settings() {
        let mut other = card("b");
        other.version = Version::new(3, 8, 0);
        assert!(
            matches!(together(Pe::new(0), &[Ok(card("a")), Ok(other)]), Err(PreflightError::Versions { pe, .. }) if pe.get() == 1)
        );
        let mut other = card("b");
        other.settings = "NVSHMEM_MAX_TEAMS=8".to_owned();
        assert!(
            matches!(together(Pe::new(1), &[Ok(card("a")), Ok(other)]), Err(PreflightError::Settings { pe, .. }) if pe.get() == 0)
        );
    }
}
