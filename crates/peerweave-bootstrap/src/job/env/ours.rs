//! The variables of `peerweave run`, which also runs the rendezvous server.
//!
//! This module is used if [`names::PE`] is set. If [`names::PE`] is not set, a different launcher
//! determines the position of the PE. Peerweave's variables can then add information, such as the
//! token. [`super::read`] and the modules of the other launchers handle this case.

use peerweave_types::Pe;

use super::{Reader, TOKEN_EXPECTED, names};
use crate::error::BootstrapError;
use crate::job::{Job, Launcher, Served};

pub(super) fn read(vars: &Reader<'_>) -> Result<Option<Job>, BootstrapError> {
    if !vars.is_set(names::PE) {
        return Ok(None);
    }
    let (pe, n_pes) = vars.index_of(names::PE, names::N_PES)?;
    let n_machines = vars.number(names::N_MACHINES, 1, n_pes)?.unwrap_or(1);
    let machine = match n_machines {
        1 => vars.number(names::MACHINE, 0, 0)?.unwrap_or(0),
        _ => vars.required(names::MACHINE, 0, n_machines - 1)?,
    };
    let (local_pe, local_n_pes) = match n_machines {
        // All PEs are on this machine, so the local variables may be missing. If they are set, they
        // must agree with the job.
        1 => {
            let local_n_pes = vars.number(names::LOCAL_N_PES, n_pes, n_pes)?.unwrap_or(n_pes);
            (vars.number(names::LOCAL_PE, 0, local_n_pes - 1)?.unwrap_or(pe), local_n_pes)
        }
        _ => {
            let local_n_pes = vars.required(names::LOCAL_N_PES, 1, n_pes)?;
            (vars.required(names::LOCAL_PE, 0, local_n_pes - 1)?, local_n_pes)
        }
    };
    let rendezvous = vars.endpoint()?;
    let token = vars.parse(names::TOKEN, TOKEN_EXPECTED)?;
    if n_pes > 1 {
        if rendezvous.is_none() {
            return Err(vars.wrong(names::RENDEZVOUS, crate::job::endpoint::EXPECTED));
        }
        if token.is_none() {
            return Err(vars.wrong(names::TOKEN, TOKEN_EXPECTED));
        }
    }
    Ok(Some(Job {
        pe: Pe::new(pe),
        n_pes,
        local_pe,
        local_n_pes,
        machine,
        n_machines,
        launcher: Launcher::Peerweave,
        rendezvous,
        token: token.unwrap_or(Job::single().token),
        // The launcher sets a random token.
        token_is_public: false,
        served: Served::ByLauncher,
        interface: vars.interface(),
    }))
}
