//! What NVSHMEM reads from the environment when it starts, as a typed builder; and setting it for
//! just so long.
//!
//! Invariant: every variable is as it was once initialisation is over, unless NVSHMEM may still be
//! reading.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::environment;
use crate::error::{MisuseKind, NvshmemError};

/// How NVSHMEM shall start. What is not set keeps the environment's value, or NVSHMEM's default.
///
/// NVSHMEM takes its options from environment variables alone, all of them when it starts or makes
/// an id, once in a process: a second start is to have the same, or is an error
/// ([`MisuseKind::AlreadyInitialized`]). So initialisation sets these in the process's environment
/// and puts the former values back afterwards. Threads that read the environment meanwhile, by
/// Rust's standard library or by C's `getenv`, find either; nothing that they may be reading is
/// changed or freed. A variable that another thread sets at the same moment may be lost.
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

    /// Any other variable, by its whole name. It is checked when NVSHMEM starts: it must begin with
    /// `NVSHMEM_`.
    pub fn variable(self, name: &str, value: &str) -> Self {
        self.set(name, value)
    }

    /// The longest that initialisation, each set-up call (allocating, freeing, making teams) and
    /// each blocking call may wait for one thing. 60 seconds unless set.
    ///
    /// A set-up call waits for the streams that use what it changes, then for the other PEs by the
    /// rendezvous (at most for the rendezvous' own deadline), then for NVSHMEM: where each comes at
    /// the last moment, it takes the sum.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    numbers! {
        /// Bytes of the symmetric heap where it is of a fixed size, 1 GiB by default; otherwise its
        /// first size.
        symmetric_size_bytes "NVSHMEM_SYMMETRIC_SIZE";
        /// Most bytes of a growing heap: addresses that are reserved, not memory. 256 GiB by
        /// default.
        max_memory_bytes "NVSHMEM_MAX_MEMORY_PER_GPU";
        /// The step by which a growing heap grows, 512 MiB by default.
        heap_step_bytes "NVSHMEM_CUMEM_GRANULARITY";
        /// Most teams, 128 by default. A team made by the user takes several.
        max_teams "NVSHMEM_MAX_TEAMS";
        /// Streams that non-blocking puts and gets are spread over, 16 by default.
        max_peer_streams "NVSHMEM_MAX_PEER_STREAMS";
    }

    texts! {
        /// The network interface by which the PEs meet. By default the one of the rendezvous.
        bootstrap_interface "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME";
        /// `AF_INET` or `AF_INET6`, for the bootstrap.
        bootstrap_family "NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY";
        /// How PEs meet that a launcher started: `PMI`, `MPI`, or `SHMEM`, which the program has
        /// initialised.
        bootstrap "NVSHMEM_BOOTSTRAP";
        /// Which PMI: `PMI`, `PMI-2`, `PMIX`.
        bootstrap_pmi "NVSHMEM_BOOTSTRAP_PMI";
        /// The network: `ibrc` by default, `ibdevx`, `libfabric`, `ucx`, or `none` for one machine.
        remote_transport "NVSHMEM_REMOTE_TRANSPORT";
        /// What NVSHMEM prints: `VERSION`, `WARN`, `INFO`, `ABORT`, `TRACE`.
        debug "NVSHMEM_DEBUG";
        /// Of which parts: `INIT`, `COLL`, `P2P`, `TRANSPORT`, `MEM`, `TEAM`, ...
        debug_subsystem "NVSHMEM_DEBUG_SUBSYS";
        /// Where to: a path, with `%h` for the host and `%p` for the process.
        debug_file "NVSHMEM_DEBUG_FILE";
        /// Ranges for a profiler: `off`, `common`, `all`, ...
        nvtx "NVSHMEM_NVTX";
        /// The InfiniBand adapters to use.
        hca_list "NVSHMEM_HCA_LIST";
    }

    switches! {
        /// Forbids NVLink multicast. It is forbidden in any case where
        /// `peerweave_driver::multicast_switch` says so.
        disable_nvls "NVSHMEM_DISABLE_NVLS";
        /// Forbids direct access to other GPUs of the machine.
        disable_p2p "NVSHMEM_DISABLE_P2P";
        /// Forbids NCCL for collectives.
        disable_nccl "NVSHMEM_DISABLE_NCCL";
        /// A heap of a fixed size, allocated at once.
        disable_cuda_vmm "NVSHMEM_DISABLE_CUDA_VMM";
        /// Forbids NVLink between machines.
        disable_mnnvl "NVSHMEM_DISABLE_MNNVL";
        /// Network traffic started by the GPU itself.
        ibgda "NVSHMEM_IB_ENABLE_IBGDA";
        /// NVSHMEM's own checks of arguments, at a cost.
        error_checks "NVSHMEM_ENABLE_ERROR_CHECKS";
        /// Prints every variable at initialisation.
        info "NVSHMEM_INFO";
    }

    /// What is set, by the variables' names.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(crate) fn deadline_set(&self) -> Duration {
        self.deadline.unwrap_or(Duration::from_secs(60))
    }

    /// The value that NVSHMEM will read.
    pub(crate) fn effective(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned().or_else(|| std::env::var(name).ok())
    }

    /// A number of bytes that NVSHMEM will read, which may have a unit.
    pub(crate) fn bytes(&self, name: &str) -> Option<u64> {
        bytes_of(&self.effective(name)?)
    }

    /// Whether NVSHMEM will find a switch on.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        let off = |text: &str| matches!(text.trim().to_ascii_lowercase().as_str(), "" | "0" | "n" | "no" | "f" | "false");
        self.effective(name).is_some_and(|text| !off(&text))
    }

    /// Whether somebody names something by a variable, which may be no text of Rust's.
    pub(crate) fn names(&self, name: &str) -> bool {
        match self.variables.get(name) {
            Some(value) => !value.is_empty(),
            None => std::env::var_os(name).is_some_and(|value| !value.is_empty()),
        }
    }

    /// Sets a variable unless somebody has.
    pub(crate) fn or(self, name: &str, value: impl FnOnce() -> Option<String>) -> Self {
        match self.effective(name) {
            Some(_) => self,
            None => match value() {
                Some(value) => self.set(name, value),
                None => self,
            },
        }
    }

    /// What is set and has to be equal on every PE, in one line: all of NVSHMEM's variables, but
    /// those that are of one process or machine alone. Numbers of bytes are compared as numbers,
    /// all else as text.
    pub(crate) fn symmetric_part(&self) -> String {
        let one = |(name, text): (&String, &String)| {
            let value = bytes_of(text).map_or_else(|| text.escape_debug().to_string(), |bytes| bytes.to_string());
            format!("{name}={value}")
        };
        self.all_effective().iter().filter(|(name, _)| !is_local(name)).map(one).collect::<Vec<_>>().join(" ")
    }

    /// All that NVSHMEM will find set, by its names. Its plug-ins read for themselves, each time,
    /// how PEs are reached to meet.
    fn all_effective(&self) -> BTreeMap<String, String> {
        let known = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).chain(self.variables.keys().cloned());
        let read = known.filter(|name| name.starts_with("NVSHMEM_") && !name.starts_with("NVSHMEM_BOOTSTRAP_UID_"));
        read.filter_map(|name| self.effective(&name).map(|value| (name, value))).collect()
    }

    /// An error where NVSHMEM has read other settings in this process.
    pub(crate) fn check_read(&self, call: &'static str) -> Result<(), NvshmemError> {
        let read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(read) = &*read else { return Ok(()) };
        let asked = self.all_effective();
        let differs = read.keys().chain(asked.keys()).find(|name| read.get(*name) != asked.get(*name));
        let Some(name) = differs else { return Ok(()) };
        let text = |all: &BTreeMap<String, String>| all.get(name).map_or(format!("no {name}"), |value| format!("{name}={value}"));
        let (what, found, asked) = ("what it read once for all,", text(read), text(&asked));
        Err(NvshmemError::misuse(call, MisuseKind::AlreadyInitialized { what, found, asked }))
    }

    /// Multicast is off wherever it is forbidden.
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
                return text("the name of a variable", "it must begin with NVSHMEM_ and have neither `=` nor a zero byte");
            }
            if value.contains('\0') {
                return text("the value of a variable", "it has a zero byte");
            }
        }
        Ok(())
    }

    /// Sets the variables until [`Environment::restore`]. One at a time does so: what it finds is
    /// what it puts back.
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

/// Whether a variable may have another value on each PE: what is printed, where things lie, which
/// adapters a machine has, how processes are reached.
fn is_local(name: &str) -> bool {
    const BEGINNINGS: [&str; 8] =
        ["BOOTSTRAP", "DEBUG", "HCA_", "IB_GID_INDEX", "INFO", "NVTX", "VERSION", "ENABLE_NIC_PE_MAPPING"];
    const ENDS: [&str; 7] = ["_DIR", "_FILE", "_HOME", "_PATH", "_PLUGIN", "_PREFIX", "_ROOT"];
    let name = name.trim_start_matches("NVSHMEM_");
    let place = format!("_{name}");
    BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)) || ENDS.iter().any(|end| place.ends_with(end))
}

/// A number of bytes as NVSHMEM reads it: `1G` is 1073741824.
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

/// Held by who changes the environment, for as long as NVSHMEM reads it: at most for the deadline
/// of that call.
static CHANGING: Mutex<()> = Mutex::new(());

/// What NVSHMEM found when it read its settings: it does so once.
static READ: Mutex<Option<BTreeMap<String, String>>> = Mutex::new(None);

/// Variables that were changed, and what they were.
#[must_use = "the environment is to be restored, or left on purpose"]
pub(crate) struct Environment {
    former: Vec<(String, Option<OsString>)>,
    _alone: MutexGuard<'static, ()>,
}

impl Environment {
    /// Puts everything back, as dropping does.
    pub(crate) fn restore(self) {}

    /// Leaves it as it is: NVSHMEM may still be reading.
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
    fn environment_is_as_before_afterwards() {
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
    fn variables_of_others_are_refused() {
        let refused = |settings: Settings| settings.check("test").expect_err("it is refused").to_string();
        assert!(refused(Settings::default().variable("LD_PRELOAD", "x")).contains("must begin with NVSHMEM_"));
        assert!(refused(Settings::default().debug("a\0b")).contains("zero byte"));
        assert!(Settings::default().debug("INFO").check("test").is_ok());
    }

    #[test]
    fn what_somebody_has_set_is_not_replaced_by_a_default() {
        let settings =
            Settings::default().bootstrap_interface("ib0").or("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", || Some("eth0".into()));
        assert_eq!(settings.effective("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME").as_deref(), Some("ib0"));
    }

    #[test]
    fn what_must_be_equal_is_all_but_what_is_one_machine_s() {
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
