//! Reads the environment variables of launchers. Each launcher has its own module. This module
//! selects the launcher and parses values.
//!
//! Invariant: a variable with an invalid value causes an error that names the variable. An invalid
//! value never selects a default.

use std::fmt::Display;
use std::io::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use peerweave_types::Pe;

use crate::error::BootstrapError;
use crate::job::endpoint::Endpoint;
use crate::job::token::{Token, fingerprint};
use crate::job::{Job, Launcher, Served};
use crate::limits::MAX_PES;

pub mod names;

mod mpich;
mod open_mpi;
mod ours;
mod size;
mod slurm;
#[cfg(target_os = "linux")]
pub(crate) mod starter;
mod torchrun;

pub use size::{NotBytes, parse_bytes};

/// A source of environment variables. Every `Fn(&str) -> Option<String>` implements this trait, so
/// tests do not need the process environment.
pub trait Vars {
    /// Returns the value of a variable. Returns `None` if the variable is not set.
    fn var(&self, name: &str) -> Option<String>;

    /// Returns a text that identifies the process that set the variable `_name`, such as a
    /// launcher. All processes that the same launcher process started get the same text. By
    /// default, returns `None`: the process is unknown.
    fn starter(&self, _name: &str) -> Option<String> {
        None
    }
}

impl<F: Fn(&str) -> Option<String>> Vars for F {
    fn var(&self, name: &str) -> Option<String> {
        self(name)
    }
}

/// The environment of this process. In a value, bytes that are not valid UTF-8 are replaced by
/// U+FFFD. So parsing such a value as a number returns an error.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnvironment;

impl Vars for ProcessEnvironment {
    fn var(&self, name: &str) -> Option<String> {
        std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    }

    #[cfg(target_os = "linux")]
    fn starter(&self, name: &str) -> Option<String> {
        starter::of_variable(name)
    }
}

/// Position of this PE in its job, as read by the module for the PE's launcher.
struct Place {
    launcher: Launcher,
    pe: u32,
    n_pes: u32,
    local_pe: u32,
    local_n_pes: u32,
    machine: u32,
    n_machines: u32,
    /// Text that distinguishes this job from all other jobs of this user.
    identity: String,
    /// The rendezvous address to use if the job runs on several machines. `Err` if the launcher
    /// provided no address. The error contains the name of the variable to set, and the expected
    /// form of its value.
    across: Result<Endpoint, (&'static str, &'static str)>,
}

impl Job {
    /// Reads the job, and the position of this PE in the job, from the environment of this process.
    ///
    /// If several launchers have set variables, only one of them is used: the first in the order
    /// Peerweave, torchrun, Open MPI, MPICH, Slurm. See [`names`].
    ///
    /// If only variables of an unsupported or incomplete environment are set
    /// ([`names::NOT_UNDERSTOOD`]), the result is a job of one PE, as without a launcher. This is
    /// rarely intended, so the function warns once per process. The warning is logged through
    /// `tracing`, or printed to standard error if there is no subscriber.
    ///
    /// # Errors
    /// [`BootstrapError::Environment`] names a variable that is missing, is malformed, or
    /// contradicts another variable.
    pub fn from_env() -> Result<Self, BootstrapError> {
        let job = Self::from_vars(&ProcessEnvironment)?;
        if job.launcher == Launcher::Single
            && let Some((name, launcher)) = not_understood(&ProcessEnvironment)
        {
            static ONCE: std::sync::Once = std::sync::Once::new();
            ONCE.call_once(|| {
                let text = format!(
                    "{name} is set, for example by {launcher}, but Peerweave cannot find a job with this variable alone, so this \
                     process runs as a job of one PE; to start several PEs, use `peerweave run`, torchrun, Open MPI, MPICH or \
                     Slurm, or set PEERWEAVE_PE and the other PEERWEAVE_ variables of a job"
                );
                warn(&text);
            });
        }
        Ok(job)
    }

    /// Reads the job, and the position of this PE in the job, from any source of variables.
    ///
    /// # Errors
    /// As for [`from_env`](Self::from_env).
    pub fn from_vars(vars: &dyn Vars) -> Result<Self, BootstrapError> {
        let job = read(vars)?;
        tracing::debug!(pe = job.pe.get(), n_pes = job.n_pes, launcher = %job.launcher, "the job was read from the environment variables");
        Ok(job)
    }

    /// Returns the environment variables that a launcher must set for the process of this PE. From
    /// these variables, [`from_vars`](Self::from_vars) reads the same position, token and
    /// rendezvous address, with the launcher [`Launcher::Peerweave`].
    ///
    /// The value of `PEERWEAVE_TOKEN` is a secret. Pass the variable in the environment, never on a
    /// command line.
    pub fn to_vars(&self) -> Vec<(&'static str, String)> {
        let mut vars = vec![
            (names::PE, self.pe.get().to_string()),
            (names::N_PES, self.n_pes.to_string()),
            (names::LOCAL_PE, self.local_pe.to_string()),
            (names::LOCAL_N_PES, self.local_n_pes.to_string()),
            (names::MACHINE, self.machine.to_string()),
            (names::N_MACHINES, self.n_machines.to_string()),
            (names::TOKEN, self.token.to_hex()),
        ];
        vars.extend(self.rendezvous.iter().map(|endpoint| (names::RENDEZVOUS, endpoint.to_string())));
        vars.extend(self.interface.iter().map(|interface| (names::INTERFACE, interface.clone())));
        vars
    }
}

/// Warns that the token of the job at `endpoint` is derived from public values. Warns once per
/// process, and only for a TCP endpoint. The warning is logged through `tracing`, or printed to
/// standard error if there is no subscriber.
pub fn warn_of_public_token(endpoint: &Endpoint) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !matches!(endpoint, Endpoint::Tcp(..)) || SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let (token, required) = (names::TOKEN, names::REQUIRE_TOKEN);
    let text = format!(
        "the token of this job at {endpoint} is derived from public values, so other users of the network can join the job \
         as a PE; set {token} to the same 64 random hexadecimal digits for every PE ({required}=1 makes this an error)"
    );
    warn(&text);
}

/// Logs a warning through `tracing`, or prints it to standard error if there is no subscriber.
pub fn warn(text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{text}");
    } else {
        // A warning that cannot be written is not an error.
        let _ = writeln!(std::io::stderr().lock(), "peerweave: {text}");
    }
}

fn read(vars: &dyn Vars) -> Result<Job, BootstrapError> {
    let vars = Reader(vars);
    if let Some(job) = ours::read(&vars)? {
        return Ok(job);
    }
    let place = match torchrun::read(&vars)? {
        Some(place) => place,
        None => match open_mpi::read(&vars)? {
            Some(place) => place,
            None => match mpich::read(&vars)? {
                Some(place) => place,
                None => match slurm::read(&vars)? {
                    Some(place) => place,
                    None => {
                        // The token is not used here, but an invalid token is an error with every
                        // launcher.
                        vars.parse::<Token>(names::TOKEN, TOKEN_EXPECTED)?;
                        return Ok(Job { interface: vars.interface(), ..Job::single() });
                    }
                },
            },
        },
    };
    let rendezvous = match vars.endpoint()? {
        _ if place.n_pes == 1 => None,
        Some(endpoint) => Some(endpoint),
        None if place.n_machines == 1 => Some(local_endpoint(&place.identity)),
        None => match place.across {
            Ok(endpoint) => Some(endpoint),
            Err((variable, expected)) => return Err(vars.wrong(variable, expected)),
        },
    };
    let (token, token_is_public) = match vars.parse::<Token>(names::TOKEN, TOKEN_EXPECTED)? {
        Some(token) => (token, false),
        None if place.n_pes > 1 && vars.flag(names::REQUIRE_TOKEN)? => return Err(vars.wrong(names::TOKEN, TOKEN_REQUIRED)),
        None => (Token::derived_from(&place.identity), true),
    };
    Ok(Job {
        pe: Pe::new(place.pe),
        n_pes: place.n_pes,
        local_pe: place.local_pe,
        local_n_pes: place.local_n_pes,
        machine: place.machine,
        n_machines: place.n_machines,
        launcher: place.launcher,
        rendezvous,
        token,
        token_is_public,
        served: Served::ByPe0,
        interface: vars.interface(),
    })
}

/// Returns the first variable in [`names::NOT_UNDERSTOOD`] that is set, and the name of a launcher
/// that sets this variable. Ignores `SLURM_PROCID` if its value is 0, because Slurm also sets this
/// value in a batch script.
fn not_understood(vars: &dyn Vars) -> Option<(&'static str, &'static str)> {
    let vars = Reader(vars);
    // A batch script is not a PE, but Slurm sets its index to 0.
    let is_part = |name| name != names::SLURM_PROCID || vars.text(name).is_some_and(|index| index.trim() != "0");
    names::NOT_UNDERSTOOD.into_iter().find(|&(name, _)| vars.is_set(name) && is_part(name))
}

const TOKEN_EXPECTED: &str = "64 hexadecimal digits";
const TOKEN_REQUIRED: &str = "64 hexadecimal digits, because PEERWEAVE_REQUIRE_TOKEN is 1";

/// Derives the rendezvous address for a job on one machine. All PEs of the job derive the same
/// address, the name of an abstract Unix socket. The name contains the user ID, which distinguishes
/// users, and a hash of `identity`, which distinguishes the jobs of one user.
#[cfg(target_os = "linux")]
fn local_endpoint(identity: &str) -> Endpoint {
    let user = rustix::process::geteuid().as_raw();
    Endpoint::Unix(format!("peerweave-{user}-{:016x}", fingerprint(identity, 0)))
}

/// Derives the rendezvous address for a job on one machine. All PEs of the job derive the same
/// address: a port of the loopback interface, because this system has no abstract Unix sockets.
#[cfg(not(target_os = "linux"))]
fn local_endpoint(identity: &str) -> Endpoint {
    Endpoint::Tcp("127.0.0.1".to_owned(), derived_port(identity))
}

/// Derives a port in 20000..32768, below the ephemeral ports of common systems.
fn derived_port(identity: &str) -> u16 {
    20_000 + (fingerprint(identity, 0) % 12_768) as u16
}

/// Reader of environment variables, which parses their values. Errors name the variable.
struct Reader<'a>(&'a dyn Vars);

impl Reader<'_> {
    /// Returns the value of a variable. Returns `None` if the variable is not set or blank. Job
    /// scripts often set blank variables.
    fn text(&self, name: &str) -> Option<String> {
        self.0.var(name).filter(|value| !value.trim().is_empty())
    }

    fn is_set(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// Returns an error that names the variable, its value and the expected value.
    fn wrong(&self, variable: &'static str, expected: impl Display) -> BootstrapError {
        // The value of a token is hidden even if it is malformed.
        let value = match variable {
            names::TOKEN => self.text(variable).map(|value| format!("({} characters, hidden)", value.chars().count())),
            _ => self.text(variable),
        };
        BootstrapError::Environment { variable, value, expected: expected.to_string() }
    }

    fn parse<T: FromStr>(&self, name: &'static str, expected: &str) -> Result<Option<T>, BootstrapError> {
        match self.text(name) {
            None => Ok(None),
            Some(value) => value.trim().parse().map(Some).map_err(|_| self.wrong(name, expected)),
        }
    }

    /// Returns whether a variable is `1`. Returns an error for values other than `0` and `1`.
    fn flag(&self, name: &'static str) -> Result<bool, BootstrapError> {
        Ok(self.number(name, 0, 1)? == Some(1))
    }

    /// Parses a variable as an integer. Returns an error if the integer is not from `min` to `max`,
    /// and `None` if the variable is not set.
    fn number(&self, name: &'static str, min: u32, max: u32) -> Result<Option<u32>, BootstrapError> {
        let expected = format!("an integer from {min} to {max}");
        match self.parse::<u32>(name, &expected)? {
            Some(value) if !(min..=max).contains(&value) => Err(self.wrong(name, expected)),
            value => Ok(value),
        }
    }

    fn required(&self, name: &'static str, min: u32, max: u32) -> Result<u32, BootstrapError> {
        let missing = || self.wrong(name, format!("an integer from {min} to {max}"));
        self.number(name, min, max)?.ok_or_else(missing)
    }

    /// Returns the values of the variables `index` and `count`. Fails if one of the variables is
    /// not set, or if the index is not less than the count.
    fn index_of(&self, index: &'static str, count: &'static str) -> Result<(u32, u32), BootstrapError> {
        let n = self.required(count, 1, MAX_PES)?;
        let i = self.required(index, 0, MAX_PES - 1)?;
        match i < n {
            true => Ok((i, n)),
            false => Err(self.wrong(index, format!("less than {n}, because {count} is {n}"))),
        }
    }

    /// Returns the index of this PE's machine and the number of machines, for launchers that set
    /// neither. Peerweave's own variables determine both numbers if they are set. Otherwise, the
    /// machines are assumed to have equal numbers of PEs and to be filled in order.
    fn machine_of(&self, [pe, n_pes]: [u32; 2], [local_pe, local_n_pes]: [u32; 2]) -> Result<(u32, u32), BootstrapError> {
        if local_n_pes == n_pes {
            return Ok((0, 1));
        }
        let n_machines = self.number(names::N_MACHINES, 2, n_pes)?.unwrap_or(n_pes.div_ceil(local_n_pes).max(2));
        let machine = self.number(names::MACHINE, 0, n_machines - 1)?;
        Ok((machine.unwrap_or_else(|| (pe.saturating_sub(local_pe) / local_n_pes).min(n_machines - 1)), n_machines))
    }

    fn endpoint(&self) -> Result<Option<Endpoint>, BootstrapError> {
        self.parse(names::RENDEZVOUS, crate::job::endpoint::EXPECTED)
    }

    fn interface(&self) -> Option<String> {
        self.text(names::INTERFACE).map(|value| value.trim().to_owned())
    }
}

#[cfg(test)]
mod tests;
