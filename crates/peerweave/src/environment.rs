//! Settings of a world from environment variables. `peerweave-bootstrap` reads the variables of
//! launchers.

use crate::choice::Request;
use peerweave_bootstrap::{BootstrapError, Job};
use peerweave_core::{Error, Misuse, MisuseKind};
use std::time::Duration;

/// The names of the variables.
pub mod names {
    /// The backend: `host`, `cuda`, or `auto`, the default, which uses GPUs if the build has the
    /// feature `cuda` and each PE of the machine gets a GPU. See
    /// [`BackendChoice`](crate::BackendChoice).
    pub const BACKEND: &str = "PEERWEAVE_BACKEND";
    /// Default deadline of waits, in seconds; fractions are allowed.
    pub const DEADLINE: &str = "PEERWEAVE_DEADLINE";
    /// `1` makes PEs compare the full descriptions of calls before running them. The host backend
    /// always compares signatures.
    pub const CHECK_CALLS: &str = "PEERWEAVE_CHECK_CALLS";
    /// Size of the symmetric heap of each PE in bytes, with suffix K, M, G or T for powers of 1024.
    /// Default: the machine's memory.
    pub const HEAP_BYTES: &str = "PEERWEAVE_HEAP_BYTES";
    /// `off` copies private buffers through shared memory, instead of reading them directly from
    /// other processes.
    pub const CROSS_MEMORY_ATTACH: &str = "PEERWEAVE_CROSS_MEMORY_ATTACH";
    /// Number that selects the order in which the threads of kernels run on the host backend. 0,
    /// the default, runs them in order. Any other number varies the order from launch to launch,
    /// and repeats the same orders in the next run. Errors of kernels report it.
    pub const KERNEL_SEED: &str = "PEERWEAVE_KERNEL_SEED";
    /// Log filter of the `peerweave` command, in the syntax of `tracing-subscriber`, such as
    /// `debug`.
    pub const LOG: &str = "PEERWEAVE_LOG";

    /// Name and expected value of each variable.
    pub const ALL: [(&str, &str); 7] = [
        (BACKEND, "auto, host or cuda"),
        (DEADLINE, "seconds, such as 60 or 0.5"),
        (CHECK_CALLS, "0 or 1"),
        (HEAP_BYTES, "bytes, such as 1073741824 or 1G"),
        (CROSS_MEMORY_ATTACH, "on or off"),
        (KERNEL_SEED, "a number below 2^64, such as 7"),
        (LOG, "a tracing filter"),
    ];
}

/// Settings found in the environment; `None` for variables that are not set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    pub(crate) backend: Option<Request>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) check_calls: Option<bool>,
    pub(crate) heap_bytes: Option<usize>,
    pub(crate) cross_memory_attach: Option<bool>,
    pub(crate) kernel_seed: Option<u64>,
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
        })
    }

    /// Reads the environment of this process.
    pub(crate) fn from_env() -> Result<Self, Error> {
        Self::read(&|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }
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
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'K' | 'k') => (&text[..at], 10),
        (at, 'M' | 'm') => (&text[..at], 20),
        (at, 'G' | 'g') => (&text[..at], 30),
        (at, 'T' | 't') => (&text[..at], 40),
        _ => (text, 0),
    };
    let bytes = digits.parse::<usize>().ok()?.checked_mul(1 << shift)?;
    (bytes > 0).then_some(bytes)
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
    fn values_are_parsed_with_their_units() {
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
    fn invalid_value_error_names_variable_and_expectation() {
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
        ];
        for (name, value) in bad {
            let error = read(&[(name, value)]).expect_err(value).to_string();
            assert!(error.contains(name) && error.contains(value) && error.contains("expected"), "{error}");
        }
    }
}
