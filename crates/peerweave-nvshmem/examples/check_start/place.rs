//! The PE number of this process, from the launcher's variables. NVSHMEM itself connects the PEs.
//!
//! Invariant: the PE number is less than the number of PEs, and the job's name can be part of a
//! file name.

use crate::Failure;

pub(crate) struct Place {
    pub(crate) pe: u32,
    pub(crate) n_pes: u32,
    /// Index of the PE on its machine.
    pub(crate) local: u32,
    /// Name of the job. The name is the same for all PEs of the job on one machine, and differs
    /// from the names of other jobs on the machine.
    pub(crate) job: String,
}

/// Variables of Open MPI, Hydra and Slurm: the PE number, the number of PEs, and the PE's index on
/// its machine.
const LAUNCHERS: [[&str; 3]; 3] = [
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
];

impl Place {
    pub(crate) fn from_env() -> Result<Self, Failure> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some([pe, n_pes, local]) = LAUNCHERS.into_iter().find(|[pe, ..]| set(pe).is_some()) else {
            return Err(
                "the process was not started by a launcher: none of OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID is set".into()
            );
        };
        let number = |name: &str| -> Result<u32, Failure> {
            let value = set(name).ok_or_else(|| format!("{pe} is set, but {name} is not"))?;
            Ok(value.parse().map_err(|_| format!("{name} is {value}, expected a number"))?)
        };
        // The fallback is the parent's process ID: processes of a job on one machine have the same
        // parent unless a script starts them.
        let job = set("PMIX_NAMESPACE")
            .or_else(|| set("SLURM_JOB_ID").zip(set("SLURM_STEP_ID")).map(|(job, step)| format!("{job}.{step}")));
        let job = job.unwrap_or_else(|| std::os::unix::process::parent_id().to_string());
        let job = job.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
        let place = Self { pe: number(pe)?, n_pes: number(n_pes)?, local: number(local)?, job };
        if place.pe >= place.n_pes {
            return Err(
                format!("{pe} is {} and {n_pes} is {}, expected an index less than the count", place.pe, place.n_pes).into()
            );
        }
        Ok(place)
    }
}
