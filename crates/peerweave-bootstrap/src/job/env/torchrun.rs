//! The variables of `torchrun`, and of other launchers that set the variables of PyTorch's
//! `env://`.
//!
//! Invariant: Peerweave does not use the port `MASTER_PORT` on `MASTER_ADDR`, because torchrun's
//! store uses this port. Peerweave uses the next port.

use super::{Place, Reader, names};
use crate::error::BootstrapError;
use crate::job::Launcher;
use crate::job::endpoint::Endpoint;

pub(super) fn read(vars: &Reader<'_>) -> Result<Option<Place>, BootstrapError> {
    // `RANK` and `WORLD_SIZE` are common words. If only one of them is set, the launcher is
    // torchrun only if one of torchrun's less common variables is also set.
    let companions = [names::LOCAL_RANK, names::MASTER_PORT, names::TORCHELASTIC_RUN_ID];
    match (vars.is_set(names::RANK), vars.is_set(names::WORLD_SIZE)) {
        (false, false) => return Ok(None),
        (true, true) => {}
        _ if !companions.iter().any(|name| vars.is_set(name)) => return Ok(None),
        _ => {}
    }
    let (pe, n_pes) = vars.index_of(names::RANK, names::WORLD_SIZE)?;
    let host = vars.text(names::MASTER_ADDR).map(|host| host.trim().to_owned());
    let port = vars.number(names::MASTER_PORT, 1, 65_534)?;
    let place = |local_pe, local_n_pes, machine, n_machines| Place {
        launcher: Launcher::Torchrun,
        pe,
        n_pes,
        local_pe,
        local_n_pes,
        machine,
        n_machines,
        identity: String::new(),
        across: Err((names::MASTER_ADDR, "")),
    };
    if n_pes == 1 {
        return Ok(Some(place(0, 1, 0, 1)));
    }
    let Some(host) = host else { return Err(vars.wrong(names::MASTER_ADDR, "the name or address of the host of PE 0")) };
    let Some(port) = port else { return Err(vars.wrong(names::MASTER_PORT, "a port on the host of PE 0")) };

    let local_n_pes = match vars.number(names::LOCAL_WORLD_SIZE, 1, n_pes)? {
        Some(local_n_pes) => local_n_pes,
        // The variables were set by hand, without torchrun. With a loopback address, all PEs are on
        // this machine.
        None if is_loopback(&host) => n_pes,
        None => {
            let expected = format!("the number of PEs on this machine (the job has {n_pes} PEs)");
            return Err(vars.wrong(names::LOCAL_WORLD_SIZE, expected));
        }
    };
    let local_pe = match vars.number(names::LOCAL_RANK, 0, local_n_pes - 1)? {
        Some(local_pe) => local_pe,
        None if local_n_pes == n_pes => pe,
        None => return Err(vars.wrong(names::LOCAL_RANK, format!("the index of PE {pe} on its machine"))),
    };
    if local_pe > pe {
        return Err(vars.wrong(names::LOCAL_RANK, format!("at most {pe}, because {} is {pe}", names::RANK)));
    }
    let (machine, n_machines) = match local_n_pes == n_pes {
        true => (0, 1),
        false => {
            // If the number of machines is not set, all machines are assumed to have the same
            // number of PEs.
            let least = n_pes.div_ceil(local_n_pes).max(2);
            let n_machines = vars.number(names::GROUP_WORLD_SIZE, 2, n_pes)?.unwrap_or(least);
            let machine = vars.number(names::GROUP_RANK, 0, n_machines - 1)?;
            (machine.unwrap_or_else(|| ((pe - local_pe) / local_n_pes).min(n_machines - 1)), n_machines)
        }
    };

    let run = vars.text(names::TORCHELASTIC_RUN_ID).unwrap_or_default();
    let restarts = vars.text(names::TORCHELASTIC_RESTART_COUNT).unwrap_or_default();
    Ok(Some(Place {
        // The identity lacks the host, because PEs of one machine may use `localhost` or the name
        // of the machine.
        identity: format!("torchrun {port} {run:?} {restarts} {n_pes}"),
        across: Ok(Endpoint::Tcp(host, port as u16 + 1)),
        ..place(local_pe, local_n_pes, machine, n_machines)
    }))
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}
