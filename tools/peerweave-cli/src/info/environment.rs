//! The environment: which launcher it is from, and which variables of ours are set. Reads it, and says why.

use std::fmt;

use peerweave::environment::names;
use peerweave_bootstrap::env::names as job_names;
use peerweave_bootstrap::{Job, Launcher as JobLauncher};
use serde::Serialize;

/// Whose environment this is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Launcher {
    /// Its name; none where there is no launcher, or where its variables cannot be understood.
    name: Option<String>,
    /// This process's place in the job.
    place: Option<Place>,
    /// Why the variables cannot be understood.
    error: Option<String>,
}

/// A place in a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Place {
    pe: u32,
    n_pes: u32,
    local_pe: u32,
    local_n_pes: u32,
    machine: u32,
    n_machines: u32,
}

impl Launcher {
    /// Reads this process's environment.
    pub(super) fn look() -> Self {
        match Job::from_env() {
            Ok(job) => Self {
                name: (job.launcher != JobLauncher::Single).then(|| job.launcher.to_string()),
                place: Some(Place {
                    pe: job.pe.get(),
                    n_pes: job.n_pes,
                    local_pe: job.local_pe,
                    local_n_pes: job.local_n_pes,
                    machine: job.machine,
                    n_machines: job.n_machines,
                }),
                error: None,
            },
            Err(error) => Self { name: None, place: None, error: Some(error.to_string()) },
        }
    }

    /// For people.
    pub(super) fn line(&self) -> (String, String) {
        let name = self.name.clone().unwrap_or_else(|| "no launcher".to_owned());
        match (&self.place, &self.error) {
            (_, Some(error)) => ("not understood".to_owned(), error.clone()),
            (Some(Place { pe, n_pes, machine, n_machines, .. }), _) if *n_pes > 1 => {
                (name, format!("this is PE {pe} of {n_pes}, on machine {machine} of {n_machines}"))
            }
            _ => (name, "a job of this process alone".to_owned()),
        }
    }
}

/// A variable that Peerweave reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Variable {
    /// Its name.
    pub name: String,
    /// Its value, where it is set; a secret is not shown.
    pub value: Option<String>,
    /// What it may be, or why it means nothing.
    pub note: String,
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{value}  ({})", self.note),
            None => write!(f, "not set  ({})", self.note),
        }
    }
}

/// What a launcher sets, in words.
const OF_A_LAUNCHER: [(&str, &str); 9] = [
    (job_names::PE, "which PE this process is"),
    (job_names::N_PES, "number of PEs"),
    (job_names::LOCAL_PE, "which of this machine's PEs"),
    (job_names::LOCAL_N_PES, "PEs of this machine"),
    (job_names::MACHINE, "which machine"),
    (job_names::N_MACHINES, "number of machines"),
    (job_names::RENDEZVOUS, "unix:@NAME or tcp:HOST:PORT"),
    (job_names::TOKEN, "64 hexadecimal digits"),
    (job_names::INTERFACE, "a network interface, by name or address"),
];

/// What the crates for GPUs read, in words.
const OF_GPUS: [(&str, &str); 3] = [
    ("PEERWEAVE_NCCL_PATH", "libnccl or its directory"),
    ("PEERWEAVE_NVSHMEM_PATH", "libnvshmem_host or its directory"),
    ("PEERWEAVE_MULTICAST", "off: no multicast objects"),
];

/// The variables that are read, in a fixed order, and then those of our prefix that are not.
pub(super) fn variables() -> Vec<Variable> {
    variables_in(&|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()), names_set())
}

fn names_set() -> Vec<String> {
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
}

fn variables_in(value_of: &dyn Fn(&str) -> Option<String>, set: Vec<String>) -> Vec<Variable> {
    let known: Vec<(&str, &str)> = names::ALL.into_iter().chain(OF_GPUS).chain(OF_A_LAUNCHER).collect();
    let mut variables: Vec<Variable> = known
        .iter()
        .map(|(name, expected)| Variable {
            name: (*name).to_owned(),
            value: value_of(name).map(|value| if *name == job_names::TOKEN { "set, not shown".to_owned() } else { value }),
            note: (*expected).to_owned(),
        })
        .collect();
    let mut others: Vec<String> = set.into_iter().filter(|name| name.starts_with("PEERWEAVE_")).collect();
    others.retain(|name| known.iter().all(|(known, _)| known != name));
    others.sort();
    variables.extend(others.into_iter().map(|name| Variable {
        value: value_of(&name),
        note: "not read by this version".to_owned(),
        name,
    }));
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown_and_an_unknown_variable_is_told_as_such() {
        let value_of = |name: &str| match name {
            "PEERWEAVE_TOKEN" => Some("0123456789abcdef".repeat(4)),
            "PEERWEAVE_NCCL_PATH" => Some("/lib".to_owned()),
            "PEERWEAVE_DEADLINE" => Some("5".to_owned()),
            "PEERWEAVE_DEDLINE" => Some("6".to_owned()),
            _ => None,
        };
        let variables = variables_in(&value_of, vec!["PEERWEAVE_DEDLINE".into(), "PEERWEAVE_TOKEN".into(), "HOME".into()]);
        let of = |name: &str| variables.iter().find(|variable| variable.name == name).map(ToString::to_string);
        assert_eq!(of("PEERWEAVE_TOKEN").unwrap(), "set, not shown  (64 hexadecimal digits)");
        assert_eq!(of("PEERWEAVE_NCCL_PATH").unwrap(), "/lib  (libnccl or its directory)");
        assert_eq!(of("PEERWEAVE_DEDLINE").unwrap(), "6  (not read by this version)");
        assert!(of("PEERWEAVE_DEADLINE").unwrap().starts_with("5  ("));
        assert!(of("PEERWEAVE_PE").unwrap().starts_with("not set  ("));
        assert_eq!(of("HOME"), None);
    }
}
