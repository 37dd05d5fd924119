//! Who am I and who are the others: the outcome of reading a launcher's environment.
//!
//! Which variables say it is [`crate::env`]'s. Connects to nobody: see [`crate::client`].
//!
//! Invariant, held by [`Job::check`] before anything is done with a job: `pe < n_pes`, `local_pe < local_n_pes <= n_pes`,
//! `machine < n_machines <= n_pes`, and a job of several PEs has a rendezvous.

use std::fmt;

use peerweave_types::Pe;

use crate::endpoint::Endpoint;
use crate::env::{self, Vars, names};
use crate::error::BootstrapError;
use crate::proto::MAX_PES;
use crate::token::Token;

/// Who started the processes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// Nobody in particular: the job is this one process.
    Single,
    /// `peerweave run`.
    Peerweave,
    /// `torchrun`, or what sets the same variables.
    Torchrun,
    /// Open MPI's `mpirun`, or another starter of PMIx.
    OpenMpi,
    /// MPICH's `mpiexec`, or another starter of PMI-1.
    Mpich,
    /// Slurm's `srun`.
    Slurm,
    /// The application itself, which made the [`Job`] by hand.
    Custom,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "no launcher",
            Self::Peerweave => "peerweave run",
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "Open MPI or PMIx",
            Self::Mpich => "MPICH or PMI-1",
            Self::Slurm => "Slurm",
            Self::Custom => "the application",
        })
    }
}

/// Who holds the server of the rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Served {
    /// The launcher, or somebody else who lives as long as the job.
    ByLauncher,
    /// PE 0, inside its [`Rendezvous`](crate::Rendezvous).
    ByPe0,
}

/// This process's place in its job, and where the others are to be met.
///
/// ```
/// use peerweave_bootstrap::{Job, Launcher, Pe};
///
/// // What `torchrun --nproc-per-node=2` sets for its second process.
/// let job = Job::from_vars(&|name: &str| {
///     let value = match name {
///         "RANK" | "LOCAL_RANK" => "1",
///         "WORLD_SIZE" | "LOCAL_WORLD_SIZE" => "2",
///         "MASTER_ADDR" => "127.0.0.1",
///         "MASTER_PORT" => "29500",
///         _ => return None,
///     };
///     Some(value.to_owned())
/// })?;
/// assert_eq!((job.pe, job.n_pes, job.launcher), (Pe::new(1), 2, Launcher::Torchrun));
///
/// // No launcher at all: a job of one PE.
/// assert_eq!(Job::from_vars(&|_: &str| None)?.n_pes, 1);
/// # Ok::<(), peerweave_bootstrap::BootstrapError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// This PE.
    pub pe: Pe,
    /// How many PEs the job has.
    pub n_pes: u32,
    /// The index of this PE among those of its machine.
    pub local_pe: u32,
    /// How many PEs this machine has.
    pub local_n_pes: u32,
    /// The index of this machine.
    pub machine: u32,
    /// How many machines the job spans.
    pub n_machines: u32,
    /// Who started it.
    pub launcher: Launcher,
    /// Where the PEs meet. `None` in a job of one PE, which meets nobody.
    pub rendezvous: Option<Endpoint>,
    /// The secret that the PEs share.
    pub token: Token,
    /// The token is derived from values that others on the network may know, for want of `PEERWEAVE_TOKEN`.
    pub token_is_public: bool,
    /// Who holds the server.
    pub served: Served,
    /// The interface to use, by name or address, from `PEERWEAVE_INTERFACE`; see [`crate::interface`].
    pub interface: Option<String>,
}

impl Job {
    /// Reads the environment of this process.
    ///
    /// Our own variables come before torchrun's, Open MPI's, MPICH's and Slurm's, in this order; see [`crate::env::names`].
    ///
    /// A process that finds only a variable of a launcher that is not understood is a job of one PE, as without a launcher. It warns, once, since
    /// N processes that each take themselves for the whole job is rarely what was meant: by `tracing`, or on standard error where no
    /// subscriber takes warnings.
    ///
    /// # Errors
    /// [`BootstrapError::Environment`] names the variable that is missing, malformed or contradicts another one.
    pub fn from_env() -> Result<Self, BootstrapError> {
        let job = Self::from_vars(&env::ProcessEnvironment)?;
        if job.launcher == Launcher::Single
            && let Some((name, launcher)) = env::not_understood(&env::ProcessEnvironment)
        {
            static ONCE: std::sync::Once = std::sync::Once::new();
            ONCE.call_once(|| {
                let text = format!(
                    "{name} is set, as by {launcher}, but it does not say what job this process belongs to: it is a job of one PE; \
                     to start several, use `peerweave run`, torchrun, Open MPI, MPICH or Slurm, or set PEERWEAVE_PE and its companions"
                );
                if tracing::enabled!(tracing::Level::WARN) {
                    tracing::warn!("{text}");
                } else {
                    eprintln!("peerweave: {text}");
                }
            });
        }
        Ok(job)
    }

    /// Reads any source of variables as if it were the environment.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_vars(vars: &dyn Vars) -> Result<Self, BootstrapError> {
        let job = env::read(vars)?;
        tracing::debug!(pe = job.pe.get(), n_pes = job.n_pes, launcher = %job.launcher, "read the environment");
        Ok(job)
    }

    /// A job of this process alone.
    pub fn single() -> Self {
        Self {
            pe: Pe::new(0),
            n_pes: 1,
            local_pe: 0,
            local_n_pes: 1,
            machine: 0,
            n_machines: 1,
            launcher: Launcher::Single,
            rendezvous: None,
            token: Token::derived_from("single"),
            token_is_public: false,
            served: Served::ByPe0,
            interface: None,
        }
    }

    /// PE `pe` of a job of `n_pes` PEs on this machine, which meet at a server that the caller holds.
    ///
    /// For launchers, for PEs that are threads, and for tests. Numbers that cannot be are found by
    /// [`Rendezvous::join`](crate::Rendezvous::join).
    pub fn on_one_machine(pe: u32, n_pes: u32, rendezvous: Endpoint, token: Token) -> Self {
        Self {
            pe: Pe::new(pe),
            n_pes,
            local_pe: pe,
            local_n_pes: n_pes,
            launcher: Launcher::Custom,
            rendezvous: Some(rendezvous),
            token,
            served: Served::ByLauncher,
            ..Self::single()
        }
    }

    /// The variables that a launcher sets for this PE, such that [`from_vars`](Self::from_vars) reads the same place in the
    /// same job back, with [`Launcher::Peerweave`].
    ///
    /// The value of `PEERWEAVE_TOKEN` is a secret: pass it by the environment, never on a command line.
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

    /// Whether all PEs are on one machine.
    pub fn is_on_one_machine(&self) -> bool {
        self.n_machines == 1
    }

    /// Checks the invariant of the module, for a job that was made by hand.
    pub(crate) fn check(&self, call: &'static str) -> Result<(), BootstrapError> {
        let below = |what: &'static str, value: u32, limit: u32| match value < limit {
            true => Ok(()),
            false => Err(BootstrapError::Misuse { call, what, value: value.to_string(), expected: format!("less than {limit}") }),
        };
        below("n_pes", self.n_pes, MAX_PES + 1)?;
        below("pe", self.pe.get(), self.n_pes)?;
        below("local_n_pes", self.local_n_pes, self.n_pes + 1)?;
        below("local_pe", self.local_pe, self.local_n_pes)?;
        below("n_machines", self.n_machines, self.n_pes + 1)?;
        below("machine", self.machine, self.n_machines)?;
        if self.n_pes > 1 && self.rendezvous.is_none() {
            return Err(BootstrapError::Misuse {
                call,
                what: "rendezvous",
                value: "none".to_owned(),
                expected: format!("an endpoint for {} PEs", self.n_pes),
            });
        }
        Ok(())
    }
}
