//! The part of the report of `info` that concerns environment variables: the launcher of this
//! process, the backend that the variables select, and the values of Peerweave's variables.

use std::fmt;

use peerweave::BackendChoice;
use peerweave::environment::names;
use peerweave_bootstrap::env::names as job_names;
use peerweave_bootstrap::{Job, Launcher as JobLauncher};
use serde::Serialize;

/// The launcher that has set the environment variables of this process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Launcher {
    /// Name of the launcher; `None` if there is no launcher, or if the launcher's variables are
    /// invalid.
    name: Option<String>,
    /// Position of this process in the job; `None` if the launcher's variables are invalid.
    place: Option<Place>,
    /// Error in the launcher's variables, if any.
    error: Option<String>,
}

/// The backend that a program started in this environment uses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Backend {
    /// Name of the backend; `None` if the settings are invalid.
    name: Option<String>,
    /// The reason for the choice of the backend, or the error if the settings are invalid.
    why: String,
}

impl Backend {
    /// Returns the backend that a program with the same build features as this command would use.
    pub(super) fn look() -> Self {
        let job = Job::from_env().unwrap_or_else(|_| Job::single());
        match BackendChoice::from_env(&job) {
            Ok(choice) => Self { name: Some(choice.backend.to_string()), why: choice.why },
            Err(error) => Self { name: None, why: error.to_string() },
        }
    }

    /// Returns the line of the report, as a name and a value.
    pub(super) fn line(&self) -> (String, String) {
        let name = self.name.as_deref().unwrap_or("none");
        ("backend".to_owned(), format!("{name}  ({})", self.why))
    }
}

/// The position of a process in a job.
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
    /// Reads the launcher's variables from the environment of this process.
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

    /// Returns the line of the report, as a name and a value.
    pub(super) fn line(&self) -> (String, String) {
        let name = self.name.clone().unwrap_or_else(|| "no launcher".to_owned());
        match (&self.place, &self.error) {
            (_, Some(error)) => ("invalid variables".to_owned(), error.clone()),
            (Some(Place { pe, n_pes, machine, n_machines, .. }), _) if *n_pes > 1 => {
                (name, format!("this is PE {pe} of {n_pes}, on machine {machine} of {n_machines}"))
            }
            _ => (name, "a job of one PE".to_owned()),
        }
    }
}

/// An environment variable with Peerweave's prefix.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Variable {
    /// Name of the variable.
    pub name: String,
    /// Value of the variable, if set; a placeholder if the value is secret.
    pub value: Option<String>,
    /// Expected values, or the reason why the variable has no effect.
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

/// Returns the variables that Peerweave reads, in a fixed order, then other variables that start
/// with `PEERWEAVE_`.
pub(super) fn variables() -> Vec<Variable> {
    variables_in(&|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()), names_set())
}

fn names_set() -> Vec<String> {
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
}

fn variables_in(value_of: &dyn Fn(&str) -> Option<String>, set: Vec<String>) -> Vec<Variable> {
    let known: Vec<(&str, &str)> = names::all().collect();
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
        note: "this version of peerweave does not read the variable".to_owned(),
        name,
    }));
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_list_hides_secrets_and_marks_unknown_variables() {
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
        assert_eq!(of("PEERWEAVE_NCCL_PATH").unwrap(), "/lib  (path of libnccl or its directory)");
        assert_eq!(of("PEERWEAVE_DEDLINE").unwrap(), "6  (this version of peerweave does not read the variable)");
        assert!(of("PEERWEAVE_DEADLINE").unwrap().starts_with("5  ("));
        assert!(of("PEERWEAVE_PE").unwrap().starts_with("not set  ("));
        assert_eq!(of("HOME"), None);
    }
}
