//! The variables of Open MPI's `mpirun` and of other PMIx launchers (`prterun`, `srun --mpi=pmix`).
//!
//! The PMIx library is not called. PMIx puts the index of the PE and the identifier of the job into
//! the environment. Only Open MPI adds the numbers of PEs.
//!
//! Invariant: if a number of PEs is missing, the error names the variable to set. A number of PEs
//! is never guessed.

use super::{Place, Reader, names};
use crate::error::BootstrapError;
use crate::job::Launcher;
use crate::limits::MAX_PES;

pub(super) fn read(vars: &Reader<'_>) -> Result<Option<Place>, BootstrapError> {
    let by_open_mpi = vars.is_set(names::OMPI_COMM_WORLD_RANK);
    // Slurm's PMIx plugin sets PMIX_RANK in addition to Slurm's own variables, which have more
    // information.
    let by_pmix = vars.is_set(names::PMIX_RANK) && !vars.is_set(names::SLURM_PROCID);
    let (index, count) = match (by_open_mpi, by_pmix) {
        (true, _) => (names::OMPI_COMM_WORLD_RANK, names::OMPI_COMM_WORLD_SIZE),
        (_, true) if vars.is_set(names::OMPI_COMM_WORLD_SIZE) => (names::PMIX_RANK, names::OMPI_COMM_WORLD_SIZE),
        (_, true) if vars.is_set(names::N_PES) => (names::PMIX_RANK, names::N_PES),
        (_, true) => {
            return Err(vars.wrong(
                names::N_PES,
                "the number of PEs in the job, because the PMIx launcher has set no variable with this number",
            ));
        }
        _ => return Ok(None),
    };
    let (pe, n_pes) = vars.index_of(index, count)?;
    if let Some(other) = vars.number(names::PMIX_RANK, 0, MAX_PES - 1)?
        && by_open_mpi
        && !vars.is_set(names::SLURM_PROCID)
        && other != pe
    {
        return Err(vars.wrong(names::PMIX_RANK, format!("{pe}, the value of {index}")));
    }
    let local_n_pes = match vars.number(names::OMPI_COMM_WORLD_LOCAL_SIZE, 1, n_pes)? {
        Some(local_n_pes) => local_n_pes,
        None => match vars.number(names::LOCAL_N_PES, 1, n_pes)? {
            Some(local_n_pes) => local_n_pes,
            None if n_pes == 1 => 1,
            None => {
                let variable = if by_open_mpi { names::OMPI_COMM_WORLD_LOCAL_SIZE } else { names::LOCAL_N_PES };
                return Err(vars.wrong(variable, format!("the number of PEs on this machine (the job has {n_pes} PEs)")));
            }
        },
    };
    let local_pe = match vars.number(names::OMPI_COMM_WORLD_LOCAL_RANK, 0, local_n_pes - 1)? {
        Some(local_pe) => local_pe,
        None => match vars.number(names::LOCAL_PE, 0, local_n_pes - 1)? {
            Some(local_pe) => local_pe,
            None if local_n_pes == n_pes => pe,
            None => return Err(vars.wrong(names::LOCAL_PE, format!("the index of PE {pe} on its machine"))),
        },
    };
    // Open MPI sets neither the index nor the number of machines. Its NODE_RANK is an index on the
    // machine. Its default placement fills the machines in order, but it may place PEs round-robin.
    let (machine, n_machines) = vars.machine_of([pe, n_pes], [local_pe, local_n_pes])?;
    let job = vars.text(names::PMIX_NAMESPACE).or_else(|| vars.text(names::OMPI_MCA_ESS_BASE_JOBID));
    let Some(job) = job.or_else(|| (n_pes == 1 || vars.is_set(names::RENDEZVOUS)).then(String::new)) else {
        return Err(vars.wrong(names::PMIX_NAMESPACE, "the identifier of the job"));
    };
    Ok(Some(Place {
        launcher: Launcher::OpenMpi,
        pe,
        n_pes,
        local_pe,
        local_n_pes,
        machine,
        n_machines,
        identity: format!("pmix {job:?} {n_pes}"),
        across: Err((
            names::RENDEZVOUS,
            "tcp:HOST:PORT, where HOST is the machine of PE 0, because this launcher provides no host name",
        )),
    }))
}
