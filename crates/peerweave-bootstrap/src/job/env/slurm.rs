//! The variables of Slurm's `srun`, and the two list notations of Slurm.
//!
//! An `salloc` shell has a job identifier but no index (`SLURM_PROCID`). A batch script of `sbatch`
//! has `SLURM_PROCID=0`, but `SLURM_STEP_ID` is not set or is not the number of an `srun` step.
//! Such processes are not PEs, so [`read`] returns `None`.
//!
//! Invariant: variables of the step take precedence over those of the job, because a step may use
//! only some of the machines of the job.

use super::{Place, Reader, derived_port, names};
use crate::error::BootstrapError;
use crate::job::Launcher;
use crate::job::endpoint::Endpoint;
use crate::limits::MAX_PES;

pub(super) fn read(vars: &Reader<'_>) -> Result<Option<Place>, BootstrapError> {
    if !vars.is_set(names::SLURM_PROCID) || !vars.is_set(names::SLURM_STEP_ID) {
        return Ok(None);
    }
    // Batch scripts, external processes and interactive shells are steps with the highest numbers.
    // `srun` never uses these numbers.
    const NO_STEP: u32 = 0xffff_fff0;
    let step = vars.parse::<u32>(names::SLURM_STEP_ID, "the number of a Slurm step")?.unwrap_or(NO_STEP);
    if step >= NO_STEP {
        return Ok(None);
    }
    let either = |step, job| if vars.is_set(step) { step } else { job };
    let count = either(names::SLURM_STEP_NUM_TASKS, names::SLURM_NTASKS);
    let (pe, n_pes) = vars.index_of(names::SLURM_PROCID, count)?;

    let n_machines = either(names::SLURM_STEP_NUM_NODES, names::SLURM_NNODES);
    let n_machines = match n_pes {
        1 => 1,
        _ => vars.required(n_machines, 1, n_pes)?,
    };
    let (machine, local_pe) = match n_machines {
        1 => (0, vars.number(names::SLURM_LOCALID, 0, n_pes - 1)?.unwrap_or(pe)),
        _ => (vars.required(names::SLURM_NODEID, 0, n_machines - 1)?, vars.required(names::SLURM_LOCALID, 0, n_pes - 1)?),
    };
    let local_n_pes = match n_machines {
        1 => n_pes,
        _ => {
            let variable = either(names::SLURM_STEP_TASKS_PER_NODE, names::SLURM_TASKS_PER_NODE);
            let tasks = vars.text(variable).and_then(|text| tasks_per_machine(&text));
            let right = |tasks: &Vec<u32>| {
                tasks.len() == n_machines as usize && tasks.iter().map(|n| u64::from(*n)).sum::<u64>() == u64::from(n_pes)
            };
            let expected = || format!("{n_machines} numbers that add up to {n_pes}, such as 4(x2),3");
            tasks.filter(right).ok_or_else(|| vars.wrong(variable, expected()))?[machine as usize]
        }
    };
    if local_pe >= local_n_pes {
        return Err(
            vars.wrong(names::SLURM_LOCALID, format!("less than {local_n_pes}, because machine {machine} has {local_n_pes} PEs"))
        );
    }

    let Some(job) = vars.text(names::SLURM_JOB_ID) else {
        return Err(vars.wrong(names::SLURM_JOB_ID, "the number of the Slurm job"));
    };
    let identity = format!("slurm {job:?} {step} {n_pes}");
    let machines = either(names::SLURM_STEP_NODELIST, names::SLURM_JOB_NODELIST);
    let across = match vars.text(machines).as_deref().and_then(first_host) {
        Some(host) => Ok(Endpoint::Tcp(host, derived_port(&identity))),
        None => Err((machines, "a list of hosts such as gpu[01-03,7]")),
    };
    Ok(Some(Place { launcher: Launcher::Slurm, pe, n_pes, local_pe, local_n_pes, machine, n_machines, identity, across }))
}

/// Parses `4(x2),3` as `[4, 4, 3]`.
fn tasks_per_machine(text: &str) -> Option<Vec<u32>> {
    let mut tasks = Vec::new();
    for item in text.trim().split(',') {
        let (count, times) = match item.split_once("(x") {
            Some((count, times)) => (count, number(times.strip_suffix(')')?)?),
            None => (item, 1),
        };
        let count = number(count)?;
        if tasks.len() + times as usize > MAX_PES as usize {
            return None;
        }
        tasks.extend((0..times).map(|_| count));
    }
    Some(tasks)
}

fn number(text: &str) -> Option<u32> {
    let digits = (1..=9).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

/// Returns the first host of a list in Slurm's notation. For example, the first host of
/// `gpu[01-03,7],login` is `gpu01`, and that of `r[1-2]n[5,6]` is `r1n5`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        match rest[end..].chars().next() {
            Some('[') => {
                let (range, after) = rest[end + 1..].split_once(']')?;
                let first = range.split([',', '-']).next()?;
                if first.is_empty() || !first.bytes().all(|c| c.is_ascii_digit()) {
                    return None;
                }
                host.push_str(first);
                rest = after;
            }
            _ => break,
        }
    }
    let is_name = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_');
    ((1..=255).contains(&host.len()) && host.bytes().all(is_name)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_host_of_a_slurm_host_list_is_found() {
        for (list, first) in [
            ("node1", "node1"),
            ("gpu[01-03,7],login", "gpu01"),
            ("gpu[7]", "gpu7"),
            ("gpu[007,009-012]", "gpu007"),
            ("login,gpu[01-03]", "login"),
            ("r[1-2]n[5,6]", "r1n5"),
            ("rack[3-4]-a,b", "rack3-a"),
            ("a.b-c_d", "a.b-c_d"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        for wrong in ["", ",", "gpu[", "gpu[]", "gpu[a-b]", "gpu]", "gp u", "gpu[1-2", "gpu[-3]"] {
            assert_eq!(first_host(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn slurm_list_of_tasks_per_node_is_expanded() {
        assert_eq!(tasks_per_machine("4(x2),3"), Some(vec![4, 4, 3]));
        assert_eq!(tasks_per_machine("8"), Some(vec![8]));
        for wrong in ["", "4(x", "4(x2", "x2", "4,,3", "-1", "4(x999999999)", "4(x99999999999)", "+4"] {
            assert_eq!(tasks_per_machine(wrong), None, "{wrong}");
        }
    }
}
