//! Environment variables that configure a [`World`](crate::World). The variables that describe the
//! job, which launchers set, are read by `peerweave-bootstrap`.

use peerweave_bootstrap::env::{parse_bytes, warn};
use peerweave_bootstrap::{BootstrapError, Job};
use peerweave_core::{Error, Misuse, MisuseKind};
use std::sync::Once;
use std::time::Duration;

/// The names of the environment variables.
pub mod names {
    use peerweave_bootstrap::env::names as job;

    /// The backend: `host`, `cuda` or `auto`. The default, `auto`, uses GPUs if this process sees a
    /// GPU for each PE of the machine and the build has the feature `cuda`. See
    /// [`BackendChoice`](crate::BackendChoice).
    pub const BACKEND: &str = "PEERWEAVE_BACKEND";
    /// Default time limit for each wait, in seconds. Fractions are allowed.
    pub const DEADLINE: &str = "PEERWEAVE_DEADLINE";
    /// On the host backend, `1` makes PEs compare the full descriptions of their calls before the
    /// calls run. With `0`, the default, PEs compare only the signatures of calls, which are
    /// hashes.
    pub const CHECK_CALLS: &str = "PEERWEAVE_CHECK_CALLS";
    /// Size of each PE's symmetric heap in bytes. The suffixes K, M, G and T stand for powers of
    /// 1024. Default: the size of the machine's memory on the host backend, 1 GiB on GPUs.
    pub const HEAP_BYTES: &str = "PEERWEAVE_HEAP_BYTES";
    /// `off` makes the host backend copy private buffers through shared memory, instead of reading
    /// these buffers directly from the memory of other processes.
    pub const CROSS_MEMORY_ATTACH: &str = "PEERWEAVE_CROSS_MEMORY_ATTACH";
    /// Seed for the order in which the host backend runs the threads of a kernel. With 0, the
    /// default, the threads run in the order of their indices. With any other seed, the order
    /// varies from launch to launch. A run with the same seed has the same orders. Errors of
    /// kernels report the seed.
    pub const KERNEL_SEED: &str = "PEERWEAVE_KERNEL_SEED";
    /// File with the route table, which gives the algorithm for each collective and size on GPUs.
    /// `peerweave tune` writes such files.
    pub const ROUTE_TABLE: &str = "PEERWEAVE_ROUTE_TABLE";
    /// Methods that replace the choices of the route table for collectives on GPUs. The value is a
    /// list of `OPERATION=METHOD`, separated by commas. `peerweave_cuda::Method` lists the methods.
    pub const ROUTE: &str = "PEERWEAVE_ROUTE";
    /// Whether NCCL may run collectives on GPUs: `off` (the default) or `auto`. With `auto`, NCCL
    /// runs a collective if NCCL is available and the route table says that NCCL is faster.
    pub const NCCL: &str = "PEERWEAVE_NCCL";
    /// Log filter for the `peerweave` command, in the syntax of `tracing-subscriber`, such as
    /// `debug`.
    pub const LOG: &str = "PEERWEAVE_LOG";

    /// The variables for which this module has a constant. Each item has the name of a variable and
    /// a description of the expected value.
    pub const ALL: [(&str, &str); 10] = [
        (BACKEND, "auto, host or cuda"),
        (DEADLINE, "seconds above 0 and below 2^64, such as 60 or 0.5"),
        (CHECK_CALLS, "0 or 1"),
        (HEAP_BYTES, "bytes, such as 1073741824 or 1G"),
        (CROSS_MEMORY_ATTACH, "on or off"),
        (KERNEL_SEED, "a number below 2^64, such as 7"),
        (ROUTE_TABLE, "path of a file that `peerweave tune` wrote"),
        (ROUTE, "OPERATION=METHOD, such as all_reduce=two_shot"),
        (NCCL, "auto or off"),
        (LOG, "a tracing filter"),
    ];

    /// The variables that the GPU crates read. Each item has the name of a variable and a
    /// description of the expected value.
    pub const OF_GPUS: [(&str, &str); 8] = [
        ("PEERWEAVE_NCCL_PATH", "path of libnccl or its directory"),
        ("PEERWEAVE_NVSHMEM_PATH", "path of libnvshmem_host or its directory"),
        ("PEERWEAVE_NVSHMEM_DEVICE_PATH", "directory of libnvshmem_device.a"),
        ("PEERWEAVE_NVRTC_PATH", "path of libnvrtc or its directory"),
        ("PEERWEAVE_NVJITLINK_PATH", "path of libnvJitLink or its directory"),
        ("PEERWEAVE_CUDA_INCLUDE", "directories of CUDA's headers"),
        ("PEERWEAVE_CACHE_DIR", "directory for the cache of linked kernels"),
        ("PEERWEAVE_MULTICAST", "auto, or off to disable multicast objects"),
    ];

    /// The variables with which launchers describe the position of a PE in the job. Each item has
    /// the name of a variable and a description of the expected value.
    pub const OF_LAUNCHERS: [(&str, &str); 10] = [
        (job::PE, "number of this PE, from 0"),
        (job::N_PES, "number of PEs"),
        (job::LOCAL_PE, "index of this PE on its machine"),
        (job::LOCAL_N_PES, "number of PEs on this machine"),
        (job::MACHINE, "index of this machine"),
        (job::N_MACHINES, "number of machines"),
        (job::RENDEZVOUS, "unix:@NAME or tcp:HOST:PORT"),
        (job::TOKEN, "64 hexadecimal digits"),
        (job::REQUIRE_TOKEN, "0 or 1"),
        (job::INTERFACE, "a network interface, by name or address"),
    ];

    /// Returns the names and expected values of all variables: [`ALL`], [`OF_GPUS`] and
    /// [`OF_LAUNCHERS`].
    pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
        ALL.into_iter().chain(OF_GPUS).chain(OF_LAUNCHERS)
    }
}

/// The value of `PEERWEAVE_BACKEND`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Request {
    /// GPUs if this process sees a GPU for each PE of the machine; otherwise shared memory.
    #[default]
    Auto,
    /// The host backend, which communicates through shared memory.
    Host,
    /// The backend for GPUs, even if this process sees fewer GPUs than the machine has PEs.
    /// Requires the feature `cuda`.
    Cuda,
}

impl Request {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "host" => Some(Self::Host),
            "cuda" => Some(Self::Cuda),
            _ => None,
        }
    }
}

/// The values of Peerweave's environment variables, as settings. A field is `None` if its variable
/// is not set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    pub(crate) backend: Option<Request>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) check_calls: Option<bool>,
    pub(crate) heap_bytes: Option<usize>,
    pub(crate) cross_memory_attach: Option<bool>,
    pub(crate) kernel_seed: Option<u64>,
    pub(crate) route_table: Option<String>,
    pub(crate) route: Option<String>,
    pub(crate) nccl: Option<bool>,
}

impl Settings {
    /// Reads variables through `var`, which returns `None` for a variable that is not set. An empty
    /// value counts as not set.
    pub(crate) fn read(var: &dyn Fn(&str) -> Option<String>) -> Result<Self, Error> {
        fn parsed<T>(
            var: &dyn Fn(&str) -> Option<String>,
            name: &'static str,
            parse: impl Fn(&str) -> Option<T>,
        ) -> Result<Option<T>, Error> {
            let Some(found) = var(name).filter(|value| !value.is_empty()) else { return Ok(None) };
            match parse(found.trim()) {
                Some(value) => Ok(Some(value)),
                None => {
                    let expected = names::ALL.iter().find(|known| known.0 == name).map_or("", |known| known.1);
                    let kind = MisuseKind::Value { argument: name, found: format!("{found:?}"), expected };
                    Err(Misuse { call: "World::from_env", kind }.into())
                }
            }
        }
        Ok(Self {
            backend: parsed(var, names::BACKEND, Request::parse)?,
            deadline: parsed(var, names::DEADLINE, seconds)?,
            check_calls: parsed(var, names::CHECK_CALLS, |text| match text {
                "0" => Some(false),
                "1" => Some(true),
                _ => None,
            })?,
            heap_bytes: parsed(var, names::HEAP_BYTES, bytes)?,
            cross_memory_attach: parsed(var, names::CROSS_MEMORY_ATTACH, |text| match text {
                "off" => Some(false),
                "on" => Some(true),
                _ => None,
            })?,
            kernel_seed: parsed(var, names::KERNEL_SEED, |text| text.parse().ok())?,
            route_table: parsed(var, names::ROUTE_TABLE, |text| Some(text.to_owned()))?,
            nccl: parsed(var, names::NCCL, |text| match text {
                "off" => Some(false),
                "auto" => Some(true),
                _ => None,
            })?,
            route: parsed(var, names::ROUTE, |text| Some(text.to_owned()))?,
        })
    }

    /// Reads the environment of this process.
    pub(crate) fn from_env() -> Result<Self, Error> {
        warn_of_unknown_variables();
        Self::read(&|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }
}

/// Prefixes of the variables that only builds and tests of Peerweave read. [`unknown_variable`]
/// returns no warning about these variables.
const NOT_FOR_PROGRAMS: [&str; 4] = ["PEERWEAVE_PTX", "PEERWEAVE_FAKE_", "PEERWEAVE_TEST_", "PEERWEAVE_KILLS"];

/// Minimum similarity, from 0 to 1, at which the warning about an unknown variable suggests a known
/// name.
const SIMILAR: f64 = 0.8;

/// Warns once per process about variables that have Peerweave's prefix but are not read.
fn warn_of_unknown_variables() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        set.filter_map(|name| unknown_variable(&name)).for_each(|text| warn(&text));
    });
}

/// Returns the warning about a variable that has Peerweave's prefix but is not read. Returns `None`
/// for all other variables.
fn unknown_variable(name: &str) -> Option<String> {
    let suffix = name.strip_prefix("PEERWEAVE_")?;
    if names::all().any(|(known, _)| known == name) || NOT_FOR_PROGRAMS.iter().any(|start| name.starts_with(start)) {
        return None;
    }
    let similarity = |known: &str| strsim::jaro_winkler(&known["PEERWEAVE_".len()..], suffix);
    let best = names::all().map(|(known, _)| known).max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    Some(match best.filter(|known| similarity(known) >= SIMILAR) {
        Some(known) => format!("peerweave does not read the variable {name}; did you mean {known}?"),
        None => format!("peerweave does not read the variable {name}; `peerweave info` lists the variables that it reads"),
    })
}

/// Returns the job described by the environment.
pub(crate) fn job() -> Result<Job, Error> {
    Job::from_env().map_err(|error: BootstrapError| Error::setup("World::from_env", error))
}

fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.parse().ok()?;
    let duration = Duration::try_from_secs_f64(seconds).ok()?;
    (!duration.is_zero()).then_some(duration)
}

fn bytes(text: &str) -> Option<usize> {
    let bytes = parse_bytes(text).ok().and_then(|bytes| usize::try_from(bytes).ok());
    bytes.filter(|&bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, Error> {
        let pairs: Vec<(String, String)> = pairs.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        Settings::read(&|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.clone()))
    }

    #[test]
    fn unset_variables_have_default_values() {
        assert_eq!(read(&[]).unwrap(), Settings::default());
        assert_eq!(read(&[(names::DEADLINE, "")]).unwrap(), Settings::default());
    }

    #[test]
    fn settings_hold_the_parsed_values_of_environment_variables() {
        let settings = read(&[
            (names::BACKEND, "host"),
            (names::DEADLINE, "1.5"),
            (names::CHECK_CALLS, "1"),
            (names::HEAP_BYTES, "3M"),
            (names::CROSS_MEMORY_ATTACH, "off"),
            (names::KERNEL_SEED, "18446744073709551615"),
        ])
        .unwrap();
        assert_eq!(settings.deadline, Some(Duration::from_millis(1500)));
        assert_eq!(settings.heap_bytes, Some(3 << 20));
        assert_eq!((settings.check_calls, settings.cross_memory_attach), (Some(true), Some(false)));
        assert_eq!(settings.kernel_seed, Some(u64::MAX));
    }

    #[test]
    fn unknown_variable_warning_suggests_a_similar_name() {
        for (name, similar) in [
            ("PEERWEAVE_HEAP_SIZE", "mean PEERWEAVE_HEAP_BYTES?"),
            ("PEERWEAVE_DEDLINE", "mean PEERWEAVE_DEADLINE?"),
            ("PEERWEAVE_NPES", "mean PEERWEAVE_N_PES?"),
            ("PEERWEAVE_COLOUR", "`peerweave info`"),
        ] {
            let text = unknown_variable(name).expect(name);
            assert!(text.contains(name) && text.contains(similar), "{text}");
        }
    }

    #[test]
    fn variables_read_by_peerweave_or_other_code_cause_no_warning() {
        let known = names::all().map(|(name, _)| name);
        for name in known.chain(["HOME", "PEERWEAVE_FAKE_NCCL_SLOW", "PEERWEAVE_PTX"]) {
            assert_eq!(unknown_variable(name), None, "{name}");
        }
    }

    #[test]
    fn invalid_value_error_names_the_variable_and_valid_values() {
        let bad = [
            (names::BACKEND, "gpu"),
            (names::DEADLINE, "soon"),
            (names::DEADLINE, "-1"),
            (names::DEADLINE, "0"),
            (names::DEADLINE, "1e400"),
            (names::CHECK_CALLS, "yes"),
            (names::HEAP_BYTES, "12Q"),
            (names::HEAP_BYTES, "99999999T"),
            (names::HEAP_BYTES, "M"),
            (names::CROSS_MEMORY_ATTACH, "maybe"),
            (names::KERNEL_SEED, "-1"),
            (names::NCCL, "on"),
        ];
        for (name, value) in bad {
            let error = read(&[(name, value)]).expect_err(value).to_string();
            assert!(error.contains(name) && error.contains(value) && error.contains("expected"), "{error}");
        }
    }
}
