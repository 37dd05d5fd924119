//! Collective setup calls: either all PEs call NVSHMEM with the same arguments, or no PE calls
//! NVSHMEM.
//!
//! NVSHMEM's setup calls wait forever for a missing PE, and corrupt the heap if PEs allocate
//! different sizes. PEs that have a rendezvous therefore compare their arguments at the rendezvous
//! before the call. The errors name PEs that are missing, were lost, or made a different call.
//!
//! Each PE then acquires the gate, which is the lock for calls of NVSHMEM. The PEs then report the
//! outcome to each other. Therefore no PE waits inside NVSHMEM for a PE that could not acquire the
//! gate. Without a rendezvous, only the deadline ends the wait for a missing PE.
//!
//! Invariant, if the PEs have a rendezvous: [`arrive`] returns an error on all members or on no
//! member.

use peerweave_bootstrap::agree::{self, Disagreement, Failure, agree};
use peerweave_bootstrap::{BootstrapError, Rendezvous};
use peerweave_types::Pe;

use crate::comm::Comm;
use crate::comm::entry::Entered;
use crate::error::{Disagree, NvshmemError, OtherCall, Timeout};

/// The PEs that take part in a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Members<'a> {
    /// All PEs.
    World,
    /// The members of a team. The first field lists the PEs in rank order. The second field is a
    /// number that identifies the team, and is the same on every member.
    Team(&'a [Pe], u64),
}

/// Prepares a collective call on this PE. Acquires the gate, which is the lock for calls of
/// NVSHMEM, and returns the acquired gate. If the PEs have a rendezvous, this function first checks
/// that all members make the same call with equal arguments. It then succeeds only after all other
/// members have acquired their gates.
///
/// `arguments` are this PE's arguments. `able` is `Ok` if this PE can make the call. If not, `able`
/// is the error that prevents the call.
pub(crate) fn arrive<'a>(
    comm: &'a Comm,
    call: &'static str,
    members: Members<'_>,
    arguments: &str,
    able: Result<(), NvshmemError>,
) -> Result<Entered<'a>, NvshmemError> {
    comm.check_usable(call)?;
    let Some(world) = &comm.world else { return able.and_then(|()| comm.enter_blocking(call)) };
    let round = |step, members, arguments, able| round(comm, world, call, step, members, arguments, able);
    match members {
        Members::World => {
            round(call, agree::Members::All, arguments, able)?;
            // A PE that cannot acquire the gate must report it, so that other PEs do not wait
            // inside NVSHMEM.
            let entered = comm.enter_blocking(call);
            round(call, agree::Members::All, ENTERED, entered.as_ref().map(drop).map_err(Clone::clone))?;
            entered
        }
        Members::Team(pes, identity) => {
            let sequence = comm.count(Counter::Calls(identity));
            let key_of = |sequence| format!("peerweave-nvshmem/{:016x}/{identity:016x}/{sequence}", comm.life);
            let key = &key_of(sequence);
            let some = agree::Members::Some { pes, key };
            round("came", some, arguments, able).inspect_err(|_| {
                // Notifies the other PEs now. Without this call, the other PEs would wait until
                // their deadline.
                agree::give_up(world, key, "seen", "the PEs made different calls");
            })?;
            // All members have read the reports of the previous call, so these reports can be
            // removed.
            for step in ["came", "seen"] {
                agree::forget(world, &key_of(sequence - 1), step);
            }
            let entered = comm.enter_blocking(call);
            round("seen", some, ENTERED, entered.as_ref().map(drop).map_err(Clone::clone))?;
            entered
        }
    }
}

/// A PE that has acquired the gate sends this text to the other PEs.
const ENTERED: &str = "ready to call NVSHMEM; all PEs passed equal arguments";

/// Compares the calls of all PEs at the rendezvous. Returns an error unless all PEs make this call
/// with equal `arguments`, and no PE reports an error. `able` is this PE's report: `Ok`, or the
/// error that prevents the call. Without a rendezvous, returns `able`.
pub(crate) fn compare(
    comm: &Comm,
    call: &'static str,
    arguments: &str,
    able: Result<(), NvshmemError>,
) -> Result<(), NvshmemError> {
    let Some(world) = &comm.world else { return able };
    round(comm, world, call, call, agree::Members::All, arguments, able)
}

fn round(
    comm: &Comm,
    world: &Rendezvous,
    call: &'static str,
    step: &str,
    members: agree::Members<'_>,
    arguments: &str,
    able: Result<(), NvshmemError>,
) -> Result<(), NvshmemError> {
    let named = format!("{call} {arguments}");
    let outcome = able.as_ref().map(|()| &[][..]).map_err(|error| Failure { reason: error.to_string(), is_consequence: false });
    let agreed = agree(world, members, step, &named, outcome);
    // This PE's own error takes precedence over what the other PEs report.
    able?;
    let arguments_of = |text: &str| text.strip_prefix(call).map_or(text, str::trim_start).to_owned();
    let disagree = |pe, theirs| Disagree { call, pe, theirs, ours: arguments.to_owned() }.into();
    agreed.map(drop).map_err(|disagreement| match disagreement {
        Disagreement::Own => {
            unreachable!("bug in peerweave-nvshmem: `agree` returned a failure of this PE, but this PE reported no failure")
        }
        Disagreement::Failed { pe, reason } => disagree(pe, OtherCall::Failed(reason)),
        Disagreement::Diverged { one, one_has, other, other_has } => {
            // At least one of the two reported calls differs from this PE's call.
            let (pe, theirs) = if one_has == named { (other, other_has) } else { (one, one_has) };
            disagree(pe, OtherCall::Made(arguments_of(&theirs)))
        }
        Disagreement::Rendezvous(BootstrapError::Timeout { waited, missing, .. })
            if matches!(members, agree::Members::Some { .. }) =>
        {
            Timeout { call, waited, pe: Some(comm.pe), missing, lost: None }.into()
        }
        Disagreement::Rendezvous(error) => NvshmemError::bootstrap(call)(error),
    })
}

/// Separates the value of a result from its success or error. The caller keeps the value, and
/// reports the success or error to the other PEs.
pub(crate) fn split_outcome<T>(result: Result<T, NvshmemError>) -> (Option<T>, Result<(), NvshmemError>) {
    match result {
        Ok(taken) => (Some(taken), Ok(())),
        Err(error) => (None, Err(error)),
    }
}

/// Identifies one of this process's counters. Each counter counts collective calls, so its value is
/// the same on all PEs that make these calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Counter {
    /// The counter for calls that allocate symmetric memory or make existing memory symmetric. Its
    /// value is the number of the new allocation.
    Allocations,
    /// The counter for the collective setup calls of one team. The field is the number that
    /// identifies the team.
    Calls(u64),
    /// The counter for the teams that are split from one parent team. The field of this variant is
    /// the number that identifies the parent team.
    Children(u64),
}
