//! Reads the variables of PMI-1 launchers, for example `mpiexec` of MPICH (Hydra) or Intel MPI.
//!
//! This module does not use the PMI connection, because that connection belongs to the program's
//! MPI library, if there is one. The environment contains the index of the PE and the number of PEs
//! in the job. MPICH also sets the index of the PE on this machine, and the number of PEs on this
//! machine. The identity of the job is derived from the process that started the PEs on this
//! machine.
//!
//! Invariant: if a number of PEs is missing, the error names the variable to set. A number of PEs
//! is never guessed.

use super::{Place, Reader, names};
use crate::error::BootstrapError;
use crate::job::Launcher;

pub(super) fn read(vars: &Reader<'_>) -> Result<Option<Place>, BootstrapError> {
    if !vars.is_set(names::PMI_RANK) || is_slurms(vars) {
        return Ok(None);
    }
    let (pe, n_pes) = vars.index_of(names::PMI_RANK, names::PMI_SIZE)?;
    let known = |choices: [&'static str; 3]| choices.into_iter().find(|name| vars.is_set(name)).unwrap_or(choices[0]);
    let count = known([names::MPI_LOCALNRANKS, names::PMI_LOCAL_SIZE, names::LOCAL_N_PES]);
    let index = known([names::MPI_LOCALRANKID, names::PMI_LOCAL_RANK, names::LOCAL_PE]);
    let local_n_pes = match vars.number(count, 1, n_pes)? {
        Some(local_n_pes) => local_n_pes,
        None if n_pes == 1 => 1,
        None => return Err(vars.wrong(count, format!("the number of PEs on this machine (the job has {n_pes} PEs)"))),
    };
    let local_pe = match vars.number(index, 0, local_n_pes - 1)? {
        Some(local_pe) => local_pe,
        None if local_n_pes == n_pes => pe,
        None => return Err(vars.wrong(index, format!("the index of PE {pe} on its machine"))),
    };
    let (machine, n_machines) = vars.machine_of([pe, n_pes], [local_pe, local_n_pes])?;
    // Each machine has a different starting process, so a job on several machines needs an explicit
    // address.
    let starter = if n_machines == 1 { vars.0.starter(names::PMI_RANK) } else { None };
    let Some(starter) = starter.or_else(|| (n_pes == 1 || vars.is_set(names::RENDEZVOUS)).then(String::new)) else {
        return Err(vars.wrong(
            names::RENDEZVOUS,
            "unix:@NAME or tcp:HOST:PORT, because this launcher provides neither a job name nor a host",
        ));
    };
    Ok(Some(Place {
        launcher: Launcher::Mpich,
        pe,
        n_pes,
        local_pe,
        local_n_pes,
        machine,
        n_machines,
        identity: format!("pmi {starter} {n_pes}"),
        across: Err((
            names::RENDEZVOUS,
            "tcp:HOST:PORT, where HOST is the machine of PE 0, because this launcher provides no host name",
        )),
    }))
}

/// Returns whether Slurm's `srun` set the PMI variables. If so, Slurm's own variables are used,
/// because they have the same numbering and contain more information. If MPICH's Hydra set the PMI
/// variables inside a Slurm allocation, the PMI numbers differ from Slurm's numbers. The reason is
/// that Hydra starts only one Slurm task on each machine.
fn is_slurms(vars: &Reader<'_>) -> bool {
    let same = |name, other: &[&str]| {
        let value = vars.text(name);
        value.is_some() && other.iter().filter_map(|name| vars.text(name)).next() == value
    };
    vars.is_set(names::SLURM_STEP_ID)
        && same(names::PMI_RANK, &[names::SLURM_PROCID])
        && (!vars.is_set(names::PMI_SIZE) || same(names::PMI_SIZE, &[names::SLURM_STEP_NUM_TASKS, names::SLURM_NTASKS]))
}
