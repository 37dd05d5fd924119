//! Names of the environment variables that describe the position of a PE: Peerweave's own variables
//! and those of supported launchers.
//!
//! Several launchers may have set variables, for example an `mpirun` inside a Slurm allocation.
//! Peerweave's own variables then take precedence over those of torchrun, Open MPI, MPICH and
//! Slurm, in this order. An empty variable counts as unset.
//!
//! Without [`TOKEN`] the token is derived from the identity of the job. A derived token keeps jobs
//! from connecting to each other by accident, but does not exclude a process that knows the
//! identity. On one machine the kernel confirms the user of a connecting process. If the network
//! between machines is not trusted, set [`TOKEN`].

/// Index of this PE in the job, from 0. `peerweave run` sets this variable and the other variables
/// that [`Job::to_vars`](crate::Job::to_vars) returns.
pub const PE: &str = "PEERWEAVE_PE";
/// Number of PEs in the job. With a PMIx launcher other than Open MPI, the user must set this
/// variable.
pub const N_PES: &str = "PEERWEAVE_N_PES";
/// Index of this PE on its machine.
pub const LOCAL_PE: &str = "PEERWEAVE_LOCAL_PE";
/// Number of PEs on this machine.
pub const LOCAL_N_PES: &str = "PEERWEAVE_LOCAL_N_PES";
/// Index of this machine in the job.
pub const MACHINE: &str = "PEERWEAVE_MACHINE";
/// Number of machines in the job.
pub const N_MACHINES: &str = "PEERWEAVE_N_MACHINES";
/// Address of the rendezvous server: `unix:@NAME` or `tcp:HOST:PORT`. With a launcher other than
/// `peerweave run`, PE 0 runs the server at this address.
pub const RENDEZVOUS: &str = "PEERWEAVE_RENDEZVOUS";
/// The job's secret, as 64 hexadecimal digits.
pub const TOKEN: &str = "PEERWEAVE_TOKEN";
/// Whether [`TOKEN`] must be set. With `1`, a job of several PEs without [`TOKEN`] is an error.
/// With `0`, the default, such a job derives its token from public values.
pub const REQUIRE_TOKEN: &str = "PEERWEAVE_REQUIRE_TOKEN";
/// Network interface that the job uses, given by its name or address.
pub const INTERFACE: &str = "PEERWEAVE_INTERFACE";

/// torchrun: index of this PE.
pub const RANK: &str = "RANK";
/// torchrun: number of PEs.
pub const WORLD_SIZE: &str = "WORLD_SIZE";
/// torchrun: index of this PE on its machine.
pub const LOCAL_RANK: &str = "LOCAL_RANK";
/// torchrun: number of PEs on this machine.
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
/// torchrun: index of the agent that runs on this machine.
pub const GROUP_RANK: &str = "GROUP_RANK";
/// torchrun: number of agents, one on each machine.
pub const GROUP_WORLD_SIZE: &str = "GROUP_WORLD_SIZE";
/// torchrun: name or address of the host on which PE 0 runs.
pub const MASTER_ADDR: &str = "MASTER_ADDR";
/// torchrun: a port on the host of PE 0. torchrun itself uses this port, and Peerweave uses the
/// next port.
pub const MASTER_PORT: &str = "MASTER_PORT";
/// torchrun: identifier of the job.
pub const TORCHELASTIC_RUN_ID: &str = "TORCHELASTIC_RUN_ID";
/// torchrun: number of times that the job has been restarted.
pub const TORCHELASTIC_RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";

/// Open MPI: index of this PE.
pub const OMPI_COMM_WORLD_RANK: &str = "OMPI_COMM_WORLD_RANK";
/// Open MPI: number of PEs.
pub const OMPI_COMM_WORLD_SIZE: &str = "OMPI_COMM_WORLD_SIZE";
/// Open MPI: index of this PE on its machine.
pub const OMPI_COMM_WORLD_LOCAL_RANK: &str = "OMPI_COMM_WORLD_LOCAL_RANK";
/// Open MPI: number of PEs on this machine.
pub const OMPI_COMM_WORLD_LOCAL_SIZE: &str = "OMPI_COMM_WORLD_LOCAL_SIZE";
/// Open MPI 4 and older: identifier of the job.
pub const OMPI_MCA_ESS_BASE_JOBID: &str = "OMPI_MCA_ess_base_jobid";
/// PMIx: index of this PE.
pub const PMIX_RANK: &str = "PMIX_RANK";
/// PMIx: identifier of the job.
pub const PMIX_NAMESPACE: &str = "PMIX_NAMESPACE";

/// PMI-1 (MPICH, Intel MPI and others): index of this PE.
pub const PMI_RANK: &str = "PMI_RANK";
/// PMI-1: number of PEs.
pub const PMI_SIZE: &str = "PMI_SIZE";
/// MPICH and Intel MPI: index of this PE on its machine.
pub const MPI_LOCALRANKID: &str = "MPI_LOCALRANKID";
/// MPICH and Intel MPI: number of PEs on this machine.
pub const MPI_LOCALNRANKS: &str = "MPI_LOCALNRANKS";
/// Other PMI-1 launchers: index of this PE on its machine.
pub const PMI_LOCAL_RANK: &str = "PMI_LOCAL_RANK";
/// Other PMI-1 launchers: number of PEs on this machine.
pub const PMI_LOCAL_SIZE: &str = "PMI_LOCAL_SIZE";

/// Variables that do not suffice to read the position of a PE. The second text of each entry names
/// a launcher that sets the variable. Either Peerweave does not support this launcher, or this
/// launcher's other variables are needed too. If no other variables of launchers are set,
/// [`Job::from_env`](crate::Job::from_env) returns a job of one PE and logs a warning.
pub const NOT_UNDERSTOOD: [(&str, &str); 10] = [
    (RANK, "torchrun (which sets both RANK and WORLD_SIZE)"),
    (WORLD_SIZE, "torchrun (which sets both WORLD_SIZE and RANK)"),
    (PMI_SIZE, "MPICH (which sets both PMI_SIZE and PMI_RANK)"),
    (SLURM_PROCID, "Slurm's srun (which sets both SLURM_PROCID and SLURM_STEP_ID)"),
    ("MV2_COMM_WORLD_RANK", "MVAPICH2"),
    ("MPT_MPI_RANK", "HPE MPT"),
    ("JSM_NAMESPACE_RANK", "IBM's jsrun"),
    ("FLUX_TASK_RANK", "Flux"),
    ("ALPS_APP_PE", "Cray's aprun"),
    ("PALS_RANKID", "Cray's PALS"),
];

/// Slurm: index of this PE in its step. An `salloc` shell has no such index and is not a PE. A
/// batch script has the index 0, but is not a PE, because `srun` did not start it.
pub const SLURM_PROCID: &str = "SLURM_PROCID";
/// Slurm: number of PEs in the step.
pub const SLURM_STEP_NUM_TASKS: &str = "SLURM_STEP_NUM_TASKS";
/// Slurm: number of PEs in the job, used if [`SLURM_STEP_NUM_TASKS`] is not set.
pub const SLURM_NTASKS: &str = "SLURM_NTASKS";
/// Slurm: index of this PE on its machine.
pub const SLURM_LOCALID: &str = "SLURM_LOCALID";
/// Slurm: number of PEs on each machine, such as `4(x2),3`.
pub const SLURM_STEP_TASKS_PER_NODE: &str = "SLURM_STEP_TASKS_PER_NODE";
/// Slurm: number of PEs on each machine, used if [`SLURM_STEP_TASKS_PER_NODE`] is not set.
pub const SLURM_TASKS_PER_NODE: &str = "SLURM_TASKS_PER_NODE";
/// Slurm: index of this machine.
pub const SLURM_NODEID: &str = "SLURM_NODEID";
/// Slurm: number of machines in the step.
pub const SLURM_STEP_NUM_NODES: &str = "SLURM_STEP_NUM_NODES";
/// Slurm: number of machines in the job, used if [`SLURM_STEP_NUM_NODES`] is not set.
pub const SLURM_NNODES: &str = "SLURM_NNODES";
/// Slurm: list of the machines in the step, such as `gpu[01-03,7],login`.
pub const SLURM_STEP_NODELIST: &str = "SLURM_STEP_NODELIST";
/// Slurm: list of the machines in the job, used if [`SLURM_STEP_NODELIST`] is not set.
pub const SLURM_JOB_NODELIST: &str = "SLURM_JOB_NODELIST";
/// Slurm: identifier of the job.
pub const SLURM_JOB_ID: &str = "SLURM_JOB_ID";
/// Slurm: identifier of the step within its job.
pub const SLURM_STEP_ID: &str = "SLURM_STEP_ID";
