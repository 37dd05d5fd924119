//! The position of this process in its job, as read from a launcher's environment.
//!
//! [`crate::job::env`] parses and writes the variables.
//!
//! [`Job::check`] checks this invariant before a job is used: `pe < n_pes`, `local_pe < local_n_pes
//! <= n_pes`, and `machine < n_machines <= n_pes`. A job of several PEs has a rendezvous.

use std::fmt;

use peerweave_types::Pe;

use crate::error::BootstrapError;
use crate::job::endpoint::Endpoint;
use crate::job::token::Token;
use crate::limits::MAX_PES;

/// The launcher that started a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// No launcher: the job consists of this process.
    Single,
    /// `peerweave run`.
    Peerweave,
    /// `torchrun`, or another launcher that sets the same variables.
    Torchrun,
    /// Open MPI's `mpirun`, or another PMIx launcher.
    OpenMpi,
    /// MPICH's `mpiexec`, or another PMI-1 launcher.
    Mpich,
    /// Slurm's `srun`.
    Slurm,
    /// The application itself, which created the [`Job`].
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

/// The process that runs the rendezvous server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Served {
    /// The launcher or another separate process runs the server. That process lives as long as the
    /// job.
    ByLauncher,
    /// PE 0 runs the server, inside its [`Rendezvous`](crate::Rendezvous).
    ByPe0,
}

/// The position of this process in its job, and the address of the rendezvous.
///
/// ```
/// use peerweave_bootstrap::{Job, Launcher, Pe};
///
/// // The variables that `torchrun --nproc-per-node=2` sets for its second process.
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
/// // Without a launcher, the process is a job of one PE.
/// assert_eq!(Job::from_vars(&|_: &str| None)?.n_pes, 1);
/// # Ok::<(), peerweave_bootstrap::BootstrapError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Number of this PE in the job.
    pub pe: Pe,
    /// Number of PEs in the job.
    pub n_pes: u32,
    /// Index of this PE on its machine.
    pub local_pe: u32,
    /// Number of PEs on this machine.
    pub local_n_pes: u32,
    /// Index of this machine in the job.
    pub machine: u32,
    /// Number of machines in the job.
    pub n_machines: u32,
    /// The launcher that started this process.
    pub launcher: Launcher,
    /// Address of the rendezvous; `None` in a job of one PE.
    pub rendezvous: Option<Endpoint>,
    /// The job's secret, which is the same on all PEs.
    pub token: Token,
    /// Whether the token is derived from values that other users of the network may know, because
    /// `PEERWEAVE_TOKEN` is not set.
    pub token_is_public: bool,
    /// The process that runs the rendezvous server.
    pub served: Served,
    /// Name or address of the network interface to use, from `PEERWEAVE_INTERFACE`. See
    /// [`crate::job::interface`].
    pub interface: Option<String>,
}

impl Job {
    /// Returns a job whose only PE is this process.
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

    /// Returns the [`Job`] with which PE `pe` joins a job of `n_pes` PEs on this machine. The
    /// caller must run the server at `rendezvous`.
    ///
    /// This function is meant for launchers, for PEs that are threads, and for tests.
    /// [`Rendezvous::join`](crate::Rendezvous::join) refuses a job in which `pe` or `n_pes` is
    /// invalid.
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

    /// Returns whether all PEs are on one machine.
    pub fn is_on_one_machine(&self) -> bool {
        self.n_machines == 1
    }

    /// Checks that the fields of this job are consistent. This check is needed because applications
    /// can set the fields to any values.
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
                expected: format!("an endpoint, because the job has {} PEs", self.n_pes),
            });
        }
        Ok(())
    }
}
