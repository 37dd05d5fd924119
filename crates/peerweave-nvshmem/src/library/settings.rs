//! NVSHMEM's environment variables as a typed builder, which sets them while NVSHMEM reads them.
//!
//! Invariant: every variable has its previous value after initialisation, unless NVSHMEM may still
//! be reading.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::environment;
use crate::error::{MisuseKind, NvshmemError};

/// Settings of NVSHMEM. An unspecified setting keeps the value of the environment, or NVSHMEM's
/// default.
///
/// NVSHMEM takes its options only from environment variables. It reads all of them once in a
/// process, when it starts or creates an id. A second start must have the same settings
/// ([`MisuseKind::AlreadyInitialized`]). So initialisation sets these variables in the process's
/// environment and restores them afterwards. Threads that read the environment meanwhile, through
/// Rust's standard library or C's `getenv`, see the old or the new values. A variable that another
/// thread sets at the same time may be lost.
///
/// ```
/// use peerweave_nvshmem::Settings;
///
/// let settings = Settings::default().symmetric_size_bytes(1 << 30).remote_transport("none").max_teams(64);
/// assert!(settings.variables().any(|(name, value)| (name, value) == ("NVSHMEM_MAX_TEAMS", "64")));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Settings {
    variables: BTreeMap<String, String>,
    deadline: Option<Duration>,
}

macro_rules! switches {
    ($($(#[$attribute:meta])* $name:ident $variable:literal;)*) => {$(
        $(#[$attribute])*
        ///
        #[doc = concat!("`", $variable, "`.")]
        pub fn $name(self, on: bool) -> Self {
            self.set($variable, if on { "1" } else { "0" })
        }
    )*};
}

macro_rules! numbers {
    ($($(#[$attribute:meta])* $name:ident $variable:literal;)*) => {$(
        $(#[$attribute])*
        ///
        #[doc = concat!("`", $variable, "`.")]
        pub fn $name(self, value: u64) -> Self {
            self.set($variable, value)
        }
    )*};
}

macro_rules! texts {
    ($($(#[$attribute:meta])* $name:ident $variable:literal;)*) => {$(
        $(#[$attribute])*
        ///
        #[doc = concat!("`", $variable, "`.")]
        pub fn $name(self, value: &str) -> Self {
            self.set($variable, value)
        }
    )*};
}

impl Settings {
    fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.insert(name.to_owned(), value.to_string());
        self
    }

    /// Sets any other variable. Its name must begin with `NVSHMEM_`, which is checked when NVSHMEM
    /// starts.
    pub fn variable(self, name: &str, value: &str) -> Self {
        self.set(name, value)
    }

    /// Sets the time limit of each wait in initialisation, setup calls (allocate, free, create
    /// teams) and blocking calls. The default is 60 seconds.
    ///
    /// A setup call waits for the streams that use its resources, then for the other PEs at the
    /// rendezvous (at most for the rendezvous' own deadline), then for NVSHMEM. The three waits can
    /// add up.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    numbers! {
        /// Size of the symmetric heap in bytes, if it is fixed; otherwise its initial size. The
        /// default is 1 GiB.
        symmetric_size_bytes "NVSHMEM_SYMMETRIC_SIZE";
        /// Maximum size of a growing heap in bytes: addresses are reserved, not memory. The default
        /// is 256 GiB.
        max_memory_bytes "NVSHMEM_MAX_MEMORY_PER_GPU";
        /// Step by which a heap grows; the default is 512 MiB.
        heap_step_bytes "NVSHMEM_CUMEM_GRANULARITY";
        /// Maximum number of teams; the default is 128. A team created by the user uses several.
        max_teams "NVSHMEM_MAX_TEAMS";
        /// Number of streams for non-blocking puts and gets; the default is 16.
        max_peer_streams "NVSHMEM_MAX_PEER_STREAMS";
    }

    texts! {
        /// The network interface by which the PEs connect; the default is the interface of the
        /// rendezvous.
        bootstrap_interface "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME";
        /// Address family of the bootstrap: `AF_INET` or `AF_INET6`.
        bootstrap_family "NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY";
        /// Bootstrap of PEs that a launcher started: `PMI`, `MPI`, or `SHMEM` (which the program
        /// must have initialised).
        bootstrap "NVSHMEM_BOOTSTRAP";
        /// The variant of PMI: `PMI`, `PMI-2`, `PMIX`.
        bootstrap_pmi "NVSHMEM_BOOTSTRAP_PMI";
        /// The network transport: `ibrc` (the default), `ibdevx`, `libfabric`, `ucx`, or `none` for
        /// one machine.
        remote_transport "NVSHMEM_REMOTE_TRANSPORT";
        /// Log level of NVSHMEM: `VERSION`, `WARN`, `INFO`, `ABORT`, `TRACE`.
        debug "NVSHMEM_DEBUG";
        /// Subsystems to log: `INIT`, `COLL`, `P2P`, `TRANSPORT`, `MEM`, `TEAM`, ...
        debug_subsystem "NVSHMEM_DEBUG_SUBSYS";
        /// Log file: a path, with `%h` for the host and `%p` for the process.
        debug_file "NVSHMEM_DEBUG_FILE";
        /// Ranges for a profiler: `off`, `common`, `all`, ...
        nvtx "NVSHMEM_NVTX";
        /// The InfiniBand adapters to use.
        hca_list "NVSHMEM_HCA_LIST";
    }

    switches! {
        /// Disables NVLink multicast. It is always disabled if `peerweave_driver::multicast_switch`
        /// disables it.
        disable_nvls "NVSHMEM_DISABLE_NVLS";
        /// Disables direct access to other GPUs of the machine.
        disable_p2p "NVSHMEM_DISABLE_P2P";
        /// Disables the use of NCCL for collectives.
        disable_nccl "NVSHMEM_DISABLE_NCCL";
        /// Allocates a heap of fixed size at the start.
        disable_cuda_vmm "NVSHMEM_DISABLE_CUDA_VMM";
        /// Disables NVLink between machines.
        disable_mnnvl "NVSHMEM_DISABLE_MNNVL";
        /// Enables network traffic started by the GPU.
        ibgda "NVSHMEM_IB_ENABLE_IBGDA";
        /// Enables NVSHMEM's own checks of arguments, at a cost.
        error_checks "NVSHMEM_ENABLE_ERROR_CHECKS";
        /// Prints every variable at initialisation.
        info "NVSHMEM_INFO";
    }

    /// Returns the variables that are set, with their values.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(crate) fn deadline_set(&self) -> Duration {
        self.deadline.unwrap_or(Duration::from_secs(60))
    }

    /// Returns the value that NVSHMEM will read.
    pub(crate) fn effective(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned().or_else(|| std::env::var(name).ok())
    }

    /// Returns the number of bytes that NVSHMEM will read; the text may have a unit.
    pub(crate) fn bytes(&self, name: &str) -> Option<u64> {
        bytes_of(&self.effective(name)?)
    }

    /// Returns whether a Boolean variable that NVSHMEM will read is true.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        let off = |text: &str| matches!(text.trim().to_ascii_lowercase().as_str(), "" | "0" | "n" | "no" | "f" | "false");
        self.effective(name).is_some_and(|text| !off(&text))
    }

    /// Returns whether a variable is set, even to a value that is not UTF-8.
    pub(crate) fn names(&self, name: &str) -> bool {
        match self.variables.get(name) {
            Some(value) => !value.is_empty(),
            None => std::env::var_os(name).is_some_and(|value| !value.is_empty()),
        }
    }

    /// Sets a variable unless it is already set.
    pub(crate) fn or(self, name: &str, value: impl FnOnce() -> Option<String>) -> Self {
        match self.effective(name) {
            Some(_) => self,
            None => match value() {
                Some(value) => self.set(name, value),
                None => self,
            },
        }
    }

    /// Returns the settings that must be equal on every PE, as one line: all of NVSHMEM's variables
    /// except those of one process or machine. Numbers of bytes are compared as numbers, other
    /// values as text.
    pub(crate) fn symmetric_part(&self) -> String {
        let one = |(name, text): (&String, &String)| {
            let value = bytes_of(text).map_or_else(|| text.escape_debug().to_string(), |bytes| bytes.to_string());
            format!("{name}={value}")
        };
        self.all_effective().iter().filter(|(name, _)| !is_local(name)).map(one).collect::<Vec<_>>().join(" ")
    }

    /// Returns all variables of NVSHMEM that will be set. Its plug-ins read them at each bootstrap.
    fn all_effective(&self) -> BTreeMap<String, String> {
        let known = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).chain(self.variables.keys().cloned());
        let read = known.filter(|name| name.starts_with("NVSHMEM_") && !name.starts_with("NVSHMEM_BOOTSTRAP_UID_"));
        read.filter_map(|name| self.effective(&name).map(|value| (name, value))).collect()
    }

    /// Fails if NVSHMEM has read other settings in this process.
    pub(crate) fn check_read(&self, call: &'static str) -> Result<(), NvshmemError> {
        let read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(read) = &*read else { return Ok(()) };
        let asked = self.all_effective();
        let differs = read.keys().chain(asked.keys()).find(|name| read.get(*name) != asked.get(*name));
        let Some(name) = differs else { return Ok(()) };
        let text = |all: &BTreeMap<String, String>| all.get(name).map_or(format!("no {name}"), |value| format!("{name}={value}"));
        let (what, found, asked) = ("the settings read at its start:", text(read), text(&asked));
        Err(NvshmemError::misuse(call, MisuseKind::AlreadyInitialized { what, found, asked }))
    }

    /// Disables multicast if it is disabled in this process.
    pub(crate) fn with_switch(self) -> Self {
        match peerweave_driver::multicast_switch() {
            Ok(()) => self,
            Err(_) => self.disable_nvls(true),
        }
    }

    pub(crate) fn check(&self, call: &'static str) -> Result<(), NvshmemError> {
        let text = |what, why| Err(NvshmemError::misuse(call, MisuseKind::Text { what, why }));
        for (name, value) in &self.variables {
            if !name.starts_with("NVSHMEM_") || name.contains(['=', '\0']) {
                return text(
                    "the name of a variable",
                    "the name must begin with NVSHMEM_ and contain neither `=` nor a zero byte",
                );
            }
            if value.contains('\0') {
                return text("the value of a variable", "the value contains a zero byte");
            }
        }
        Ok(())
    }

    /// Sets the variables until [`Environment::restore`]. Only one thread does so at a time.
    pub(crate) fn apply(&self) -> Environment {
        let alone = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        READ.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| self.all_effective());
        let (mut changes, mut former) = (Vec::new(), Vec::new());
        for (name, value) in &self.variables {
            let was = std::env::var_os(name);
            if was.as_deref().is_some_and(|was| was == value.as_str()) {
                continue;
            }
            changes.push((name.clone(), Some(OsString::from(value))));
            former.push((name.clone(), was));
        }
        environment::change(&changes);
        Environment { former, _alone: alone }
    }
}

/// Returns whether a variable may differ among PEs: logging, paths, adapters of a machine,
/// addresses of processes.
fn is_local(name: &str) -> bool {
    const BEGINNINGS: [&str; 8] =
        ["BOOTSTRAP", "DEBUG", "HCA_", "IB_GID_INDEX", "INFO", "NVTX", "VERSION", "ENABLE_NIC_PE_MAPPING"];
    const ENDS: [&str; 7] = ["_DIR", "_FILE", "_HOME", "_PATH", "_PLUGIN", "_PREFIX", "_ROOT"];
    let name = name.trim_start_matches("NVSHMEM_");
    let place = format!("_{name}");
    BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)) || ENDS.iter().any(|end| place.ends_with(end))
}

/// Parses a number of bytes like NVSHMEM: `1G` is 1073741824.
fn bytes_of(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_uppercase();
    let (number, unit) = text.split_at(text.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(text.len()));
    let shift = match unit.trim().trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Locked while the environment is changed and NVSHMEM reads it: at most for the deadline of that
/// call.
static CHANGING: Mutex<()> = Mutex::new(());

/// The settings that NVSHMEM has read; it reads them once.
static READ: Mutex<Option<BTreeMap<String, String>>> = Mutex::new(None);

/// Changed variables with their previous values.
#[must_use = "dropping this value restores the environment"]
pub(crate) struct Environment {
    former: Vec<(String, Option<OsString>)>,
    _alone: MutexGuard<'static, ()>,
}

impl Environment {
    /// Restores the variables, like dropping.
    pub(crate) fn restore(self) {}

    /// Keeps the changed variables, because NVSHMEM may still be reading.
    pub(crate) fn leave(mut self) {
        self.former.clear();
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        environment::change(&self.former);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_is_restored_after_initialisation() {
        environment::change(&[("NVSHMEM_DEBUG_TEST_ONLY_A".to_owned(), Some("before".into()))]);
        let settings =
            Settings::default().variable("NVSHMEM_DEBUG_TEST_ONLY_A", "during").variable("NVSHMEM_DEBUG_TEST_ONLY_B", "new");
        let environment = settings.apply();
        let now = |name| std::env::var(name).ok();
        assert_eq!(
            (now("NVSHMEM_DEBUG_TEST_ONLY_A").as_deref(), now("NVSHMEM_DEBUG_TEST_ONLY_B").as_deref()),
            (Some("during"), Some("new"))
        );
        environment.restore();
        assert_eq!(
            (now("NVSHMEM_DEBUG_TEST_ONLY_A").as_deref(), now("NVSHMEM_DEBUG_TEST_ONLY_B").as_deref()),
            (Some("before"), None)
        );
    }

    #[test]
    fn variables_without_the_nvshmem_prefix_are_refused() {
        let refused = |settings: Settings| settings.check("test").expect_err("it is refused").to_string();
        assert!(refused(Settings::default().variable("LD_PRELOAD", "x")).contains("must begin with NVSHMEM_"));
        assert!(refused(Settings::default().debug("a\0b")).contains("zero byte"));
        assert!(Settings::default().debug("INFO").check("test").is_ok());
    }

    #[test]
    fn set_variable_is_not_replaced_by_a_default() {
        let settings =
            Settings::default().bootstrap_interface("ib0").or("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", || Some("eth0".into()));
        assert_eq!(settings.effective("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME").as_deref(), Some("ib0"));
    }

    #[test]
    fn settings_of_one_machine_need_not_be_equal() {
        let settings =
            Settings::default().max_teams(7).disable_nccl(true).debug("INFO").hca_list("mlx5_0").bootstrap_interface("eth0");
        let settings = settings
            .variable("NVSHMEM_REDUCE_ALGO", "2")
            .variable("NVSHMEM_HOME", "/opt")
            .variable("NVSHMEM_SYMMETRIC_SIZE", "1G");
        let expected = "NVSHMEM_DISABLE_NCCL=1 NVSHMEM_MAX_TEAMS=7 NVSHMEM_REDUCE_ALGO=2 NVSHMEM_SYMMETRIC_SIZE=1073741824";
        assert_eq!(settings.symmetric_part(), expected);
        assert_eq!(Settings::default().symmetric_size_bytes(1 << 30).symmetric_part(), "NVSHMEM_SYMMETRIC_SIZE=1073741824");
    }
}
