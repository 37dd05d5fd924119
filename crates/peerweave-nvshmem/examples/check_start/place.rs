//! Which PE this process is, by what its launcher says. Meeting the others is NVSHMEM's business.
//!
//! Invariant: the number is below the count, and the job's name can be part of a file's name.

use crate::Failure;

pub(crate) struct Place {
    pub(crate) pe: u32,
    pub(crate) n_pes: u32,
    /// Counts the PEs of this machine.
    pub(crate) local: u32,
    /// The same for all PEs of a job on one machine, and for no other job there.
    pub(crate) job: String,
}

/// Number, count and number on the machine: Open MPI's, Slurm's, Hydra's.
const LAUNCHERS: [[&str; 3]; 3] = [
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
];

impl Place {
    pub(crate) fn from_env() -> Result<Self, Failure> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some([pe, n_pes, local]) = LAUNCHERS.into_iter().find(|[pe, ..]| set(pe).is_some()) else {
            return Err("no launcher started this: none of OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID is set".into());
        };
        let number = |name: &str| -> Result<u32, Failure> {
            let value = set(name).ok_or_else(|| format!("{pe} is set and {name} is not"))?;
            Ok(value.parse().map_err(|_| format!("{name}={value}: expected a number"))?)
        };
        // Processes of a job on one machine have one parent, unless a script is between.
        let job = set("PMIX_NAMESPACE")
            .or_else(|| set("SLURM_JOB_ID").zip(set("SLURM_STEP_ID")).map(|(job, step)| format!("{job}.{step}")));
        let job = job.unwrap_or_else(|| std::os::unix::process::parent_id().to_string());
        let job = job.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
        let place = Self { pe: number(pe)?, n_pes: number(n_pes)?, local: number(local)?, job };
        if place.pe >= place.n_pes {
            return Err(format!("{pe}={} and {n_pes}={}: expected a number below the count", place.pe, place.n_pes).into());
        }
        Ok(place)
    }
}
