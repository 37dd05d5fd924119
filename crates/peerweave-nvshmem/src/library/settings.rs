//! A typed builder for NVSHMEM's environment variables. The variables are set only while NVSHMEM
//! reads them.
//!
//! Invariant: after initialisation every variable has its previous value, unless NVSHMEM may still
//! be reading the variables.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::environment;
use crate::error::{MisuseKind, NvshmemError};

/// Settings for NVSHMEM. If the caller does not specify a setting, NVSHMEM uses the value in the
/// environment. If the environment has no value either, NVSHMEM uses its default.
///
/// NVSHMEM takes its options only from environment variables. A process reads these variables once:
/// when NVSHMEM starts or creates an id, whichever is first. A second start with different settings
/// fails with [`MisuseKind::AlreadyInitialized`].
///
/// Initialisation therefore sets these variables in the environment of the process, and restores
/// the environment after initialisation. Threads that read the environment during initialisation,
/// through Rust's standard library or C's `getenv`, see the old or the new values. If another
/// thread sets a variable during initialisation, the value may be lost.
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
        #[doc = concat!("\nEnvironment variable: `", $variable, "`.")]
        pub fn $name(self, on: bool) -> Self {
            self.set($variable, if on { "1" } else { "0" })
        }
    )*};
}

macro_rules! numbers {
    ($($(#[$attribute:meta])* $name:ident $variable:literal;)*) => {$(
        $(#[$attribute])*
        #[doc = concat!("\nEnvironment variable: `", $variable, "`.")]
        pub fn $name(self, value: u64) -> Self {
            self.set($variable, value)
        }
    )*};
}

macro_rules! texts {
    ($($(#[$attribute:meta])* $name:ident $variable:literal;)*) => {$(
        $(#[$attribute])*
        #[doc = concat!("\nEnvironment variable: `", $variable, "`.")]
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

    /// Sets an environment variable for which this type has no method. The name must begin with
    /// `NVSHMEM_`. The name is checked when NVSHMEM starts or creates an id.
    pub fn variable(self, name: &str, value: &str) -> Self {
        self.set(name, value)
    }

    /// Sets the time limit for each wait in three kinds of calls: initialisation, setup calls and
    /// blocking calls. A setup call, for example, allocates memory, frees memory or creates a team.
    /// The default is 60 seconds.
    ///
    /// A setup call waits first for the streams that use its resources, then for the other PEs at
    /// the rendezvous, and then for NVSHMEM. The rendezvous has its own deadline, which can also
    /// end the wait for the other PEs. The call can take as long as all of these waits together.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    numbers! {
        /// Sets the size in bytes of a heap of fixed size, or the initial size in bytes of a
        /// growing heap. The default is 1 GiB.
        symmetric_size_bytes "NVSHMEM_SYMMETRIC_SIZE";
        /// Sets the maximum size of a growing heap in bytes. NVSHMEM reserves addresses for the
        /// maximum size, but this reservation uses no memory. The default is 256 GiB.
        max_memory_bytes "NVSHMEM_MAX_MEMORY_PER_GPU";
        /// Sets the step by which a heap grows, in bytes. The default is 512 MiB.
        heap_step_bytes "NVSHMEM_CUMEM_GRANULARITY";
        /// Sets the maximum number of teams. The default is 128. A team that the program creates
        /// can count as several teams, because NVSHMEM creates further teams internally. NVSHMEM
        /// does this, for example, with multicast.
        max_teams "NVSHMEM_MAX_TEAMS";
        /// Sets the number of streams for non-blocking puts and gets. The default is 16.
        max_peer_streams "NVSHMEM_MAX_PEER_STREAMS";
    }

    texts! {
        /// Sets the network interface by which the PEs connect. The default is the interface of the
        /// rendezvous.
        bootstrap_interface "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME";
        /// Sets the address family of the bootstrap: `AF_INET` or `AF_INET6`.
        bootstrap_family "NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY";
        /// Sets the bootstrap of PEs that a launcher started: `PMI`, `MPI` or `SHMEM`. With
        /// `SHMEM`, the program must initialise OpenSHMEM before NVSHMEM.
        bootstrap "NVSHMEM_BOOTSTRAP";
        /// Sets the variant of PMI: `PMI`, `PMI-2` or `PMIX`.
        bootstrap_pmi "NVSHMEM_BOOTSTRAP_PMI";
        /// Sets the network transport: `ibrc` (the default), `ibdevx`, `libfabric`, `ucx`, or
        /// `none` if all PEs are on one machine.
        remote_transport "NVSHMEM_REMOTE_TRANSPORT";
        /// Sets the log level of NVSHMEM: `VERSION`, `WARN`, `INFO`, `ABORT` or `TRACE`.
        debug "NVSHMEM_DEBUG";
        /// Sets the subsystems to log: `INIT`, `COLL`, `P2P`, `TRANSPORT`, `MEM`, `TEAM` and
        /// others.
        debug_subsystem "NVSHMEM_DEBUG_SUBSYS";
        /// Sets the path of the log file. NVSHMEM replaces `%h` in the path by the host name, and
        /// `%p` by the process ID.
        debug_file "NVSHMEM_DEBUG_FILE";
        /// Selects the NVTX ranges that NVSHMEM reports to profilers: `off`, `common`, `all` or
        /// others.
        nvtx "NVSHMEM_NVTX";
        /// Sets the InfiniBand adapters to use.
        hca_list "NVSHMEM_HCA_LIST";
    }

    switches! {
        /// Disables NVLink multicast. Multicast is always disabled if
        /// `peerweave_driver::multicast_switch` disables it.
        disable_nvls "NVSHMEM_DISABLE_NVLS";
        /// Disables direct access to other GPUs in the same machine.
        disable_p2p "NVSHMEM_DISABLE_P2P";
        /// Disables the use of NCCL for collectives.
        disable_nccl "NVSHMEM_DISABLE_NCCL";
        /// Makes NVSHMEM allocate a heap of fixed size at the start, instead of a heap that grows.
        disable_cuda_vmm "NVSHMEM_DISABLE_CUDA_VMM";
        /// Disables NVLink between machines.
        disable_mnnvl "NVSHMEM_DISABLE_MNNVL";
        /// Enables network transfers that the GPU starts (IBGDA).
        ibgda "NVSHMEM_IB_ENABLE_IBGDA";
        /// Enables NVSHMEM's own checks of arguments, which make calls slower.
        error_checks "NVSHMEM_ENABLE_ERROR_CHECKS";
        /// Makes NVSHMEM print, at initialisation, every environment variable that it knows.
        info "NVSHMEM_INFO";
    }

    /// Returns the name and the value of each environment variable that these settings set.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(crate) fn deadline_set(&self) -> Duration {
        self.deadline.unwrap_or(Duration::from_secs(60))
    }

    /// Returns the value that NVSHMEM will read for the variable `name`. A value in these settings
    /// has priority over a value in the environment.
    pub(crate) fn effective(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned().or_else(|| std::env::var(name).ok())
    }

    /// Returns the value of an NVSHMEM variable as a number of bytes. The text of the variable may
    /// have a unit, such as `1G`.
    pub(crate) fn bytes(&self, name: &str) -> Option<u64> {
        bytes_of(&self.effective(name)?)
    }

    /// Returns whether a Boolean variable is true in these settings. If these settings do not set
    /// the variable, uses its value in the environment.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        let off = |text: &str| matches!(text.trim().to_ascii_lowercase().as_str(), "" | "0" | "n" | "no" | "f" | "false");
        self.effective(name).is_some_and(|text| !off(&text))
    }

    /// Returns whether the variable `name` has a value that is not empty. A value in these settings
    /// has priority over a value in the environment. The value need not be UTF-8.
    pub(crate) fn names(&self, name: &str) -> bool {
        match self.variables.get(name) {
            Some(value) => !value.is_empty(),
            None => std::env::var_os(name).is_some_and(|value| !value.is_empty()),
        }
    }

    /// Sets the variable `name` to the value that `value` returns. Changes nothing if the variable
    /// is already set, in these settings or in the environment, or if `value` returns `None`.
    pub(crate) fn or(self, name: &str, value: impl FnOnce() -> Option<String>) -> Self {
        match self.effective(name) {
            Some(_) => self,
            None => match value() {
                Some(value) => self.set(name, value),
                None => self,
            },
        }
    }

    /// Returns one line of text with the settings that must be equal on every PE. The PEs compare
    /// this line. Variables that concern only one process or one machine are omitted. A number with
    /// a unit, such as `1G`, is written as a number of bytes.
    pub(crate) fn symmetric_part(&self) -> String {
        let one = |(name, text): (&String, &String)| {
            let value = bytes_of(text).map_or_else(|| text.escape_debug().to_string(), |bytes| bytes.to_string());
            format!("{name}={value}")
        };
        self.all_effective().iter().filter(|(name, _)| !is_local(name)).map(one).collect::<Vec<_>>().join(" ")
    }

    /// Returns the names and values of the `NVSHMEM_*` variables, from these settings and from the
    /// environment. Omits the variables `NVSHMEM_BOOTSTRAP_UID_*`. NVSHMEM reads these at each
    /// bootstrap by an id, and all others only once in a process.
    fn all_effective(&self) -> BTreeMap<String, String> {
        let known = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).chain(self.variables.keys().cloned());
        let read = known.filter(|name| name.starts_with("NVSHMEM_") && !name.starts_with("NVSHMEM_BOOTSTRAP_UID_"));
        read.filter_map(|name| self.effective(&name).map(|value| (name, value))).collect()
    }

    /// Returns an error if NVSHMEM has already read its settings in this process, and those
    /// settings differ from `self`.
    pub(crate) fn check_read(&self, call: &'static str) -> Result<(), NvshmemError> {
        let read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(read) = &*read else { return Ok(()) };
        let asked = self.all_effective();
        let differs = read.keys().chain(asked.keys()).find(|name| read.get(*name) != asked.get(*name));
        let Some(name) = differs else { return Ok(()) };
        let text =
            |all: &BTreeMap<String, String>| all.get(name).map_or(format!("{name} unset"), |value| format!("{name}={value}"));
        let (what, found, asked) = ("the setting", text(read), text(&asked));
        Err(NvshmemError::misuse(call, MisuseKind::AlreadyInitialized { what, found, asked }))
    }

    /// Disables multicast in these settings if `peerweave_driver::multicast_switch` disables
    /// multicast in this process.
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

    /// Sets the variables of these settings in the environment of the process. Dropping the
    /// returned value restores the previous values of the variables. While the returned value
    /// lives, calls of this function by other threads wait.
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

/// Returns whether a variable may differ among PEs. Such variables are about logging, paths,
/// adapters of a machine or addresses of processes.
fn is_local(name: &str) -> bool {
    const BEGINNINGS: [&str; 8] =
        ["BOOTSTRAP", "DEBUG", "HCA_", "IB_GID_INDEX", "INFO", "NVTX", "VERSION", "ENABLE_NIC_PE_MAPPING"];
    const ENDS: [&str; 7] = ["_DIR", "_FILE", "_HOME", "_PATH", "_PLUGIN", "_PREFIX", "_ROOT"];
    let name = name.trim_start_matches("NVSHMEM_");
    let place = format!("_{name}");
    BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)) || ENDS.iter().any(|end| place.ends_with(end))
}

/// Parses a number of bytes as NVSHMEM does: `1G` is 1073741824.
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

/// The lock for changes of the environment. A thread holds the lock while it changes the
/// environment, calls the function of NVSHMEM that reads the environment, and restores the
/// environment. The deadline of that call limits the time for which the lock is held.
static CHANGING: Mutex<()> = Mutex::new(());

/// The settings that NVSHMEM has read. NVSHMEM reads its settings only once in a process.
static READ: Mutex<Option<BTreeMap<String, String>>> = Mutex::new(None);

/// The previous values of the environment variables that [`Settings::apply`] has changed. Dropping
/// this value restores these variables.
#[must_use = "dropping this value restores the environment"]
pub(crate) struct Environment {
    former: Vec<(String, Option<OsString>)>,
    _alone: MutexGuard<'static, ()>,
}

impl Environment {
    /// Consumes this value. Its destructor restores the previous values of the variables.
    pub(crate) fn restore(self) {}

    /// Leaves the changed variables set, because NVSHMEM may still be reading the variables.
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
        let refused = |settings: Settings| settings.check("test").expect_err("the call is refused").to_string();
        assert!(refused(Settings::default().variable("LD_PRELOAD", "x")).contains("must begin with NVSHMEM_"));
        assert!(refused(Settings::default().debug("a\0b")).contains("zero byte"));
        assert!(Settings::default().debug("INFO").check("test").is_ok());
    }

    #[test]
    fn default_value_does_not_replace_the_callers_setting() {
        let settings =
            Settings::default().bootstrap_interface("ib0").or("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", || Some("eth0".into()));
        assert_eq!(settings.effective("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME").as_deref(), Some("ib0"));
    }

    #[test]
    fn settings_comparison_ignores_variables_that_may_differ_by_pe() {
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
