//! Collective set-up calls: all PEs come, with the same arguments, or none calls NVSHMEM.
//!
//! NVSHMEM's own set-up calls wait forever for a PE that does not come, and corrupt the heap where
//! PEs allocate different sizes. Where the PEs met by a rendezvous, they first agree there: it
//! names the PEs that are missing, that were lost, and that came with something else. Then each
//! enters, and they agree again, so that no PE is inside NVSHMEM for one that is kept out.
//! Without a rendezvous there is only the deadline.
//!
//! Invariant: the outcome is an error on every PE or on none.

use peerweave_bootstrap::agree::{self, Disagreement, Failure, agree};
use peerweave_bootstrap::{BootstrapError, Rendezvous};
use peerweave_types::Pe;

use crate::comm::Comm;
use crate::comm::entry::Entered;
use crate::error::{Disagree, NvshmemError, Timeout};

/// The PEs that take part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Members<'a> {
    /// All PEs.
    World,
    /// The PEs of a team, in its order; the number tells teams apart, and is the same on every
    /// member.
    Team(&'a [Pe], u64),
}

/// Comes to a collective call with its arguments, or with why this PE cannot. Gives the way into
/// NVSHMEM, which all others have got by then too.
pub(crate) fn arrive<'a>(
    comm: &'a Comm,
    call: &'static str,
    members: Members<'_>,
    arguments: &str,
    able: Result<(), NvshmemError>,
) -> Result<Entered<'a>, NvshmemError> {
    comm.alive(call)?;
    let Some(world) = &comm.world else { return able.and_then(|()| comm.enter_blocking(call)) };
    let round = |step, members, arguments, able| round(comm, world, call, step, members, arguments, able);
    match members {
        Members::World => {
            round(call, agree::Members::All, arguments, able)?;
            // A PE that does not get in must not leave the others there alone.
            let entered = comm.enter_blocking(call);
            round(call, agree::Members::All, SEEN, entered.as_ref().map(drop).map_err(Clone::clone))?;
            entered
        }
        Members::Team(pes, identity) => {
            let sequence = comm.count(Counted::Meetings(identity));
            let key_of = |sequence| format!("peerweave-nvshmem/{:016x}/{identity:016x}/{sequence}", comm.life);
            let key = &key_of(sequence);
            let some = agree::Members::Some { pes, key };
            round("came", some, arguments, able).inspect_err(|_| {
                // The others learn at once what they would only learn at their deadline.
                agree::give_up(world, key, "seen", "saw another call");
            })?;
            // No PE that is here reads what was said at the meeting before.
            for step in ["came", "seen"] {
                agree::forget(world, &key_of(sequence - 1), step);
            }
            let entered = comm.enter_blocking(call);
            round("seen", some, SEEN, entered.as_ref().map(drop).map_err(Clone::clone))?;
            entered
        }
    }
}

/// What a PE says that has agreed with all, and is inside.
const SEEN: &str = "all came with the same";

/// Compares with all PEs what this one has, or why it has nothing, where the PEs have a rendezvous.
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
    let outcome = able.as_ref().map(|()| &[][..]).map_err(|error| Failure { reason: error.to_string(), is_heard: false });
    let agreed = agree(world, members, step, &named, outcome);
    // A mistake of this PE is its own error, whatever the others have.
    able?;
    let arguments_of = |text: &str| text.strip_prefix(call).map_or(text, str::trim_start).to_owned();
    let disagree = |pe, theirs| Disagree { call, pe, theirs, ours: arguments.to_owned() }.into();
    agreed.map(drop).map_err(|disagreement| match disagreement {
        Disagreement::Own => unreachable!("bug in peerweave-nvshmem: this PE could do its part"),
        Disagreement::Failed { pe, reason } => disagree(pe, format!("cannot: {reason}")),
        Disagreement::Diverged { one, one_has, other, other_has } => {
            // One of both is not what this PE has.
            let (pe, theirs) = if one_has == named { (other, other_has) } else { (one, one_has) };
            disagree(pe, arguments_of(&theirs))
        }
        Disagreement::Rendezvous(BootstrapError::Timeout { waited, missing, .. })
            if matches!(members, agree::Members::Some { .. }) =>
        {
            Timeout { call, waited, pe: Some(comm.pe), missing, lost: None }.into()
        }
        Disagreement::Rendezvous(error) => NvshmemError::bootstrap(call)(error),
    })
}

/// What was taken for a call, to be kept until it is over; and whether it could be, for the others.
pub(crate) fn taken<T>(result: Result<T, NvshmemError>) -> (Option<T>, Result<(), NvshmemError>) {
    match result {
        Ok(taken) => (Some(taken), Ok(())),
        Err(error) => (None, Err(error)),
    }
}

/// What is counted alike on every PE that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Counted {
    /// Pieces of symmetric memory.
    Allocations,
    /// Meetings of those who have this number in common.
    Meetings(u64),
    /// Teams that were made of the team of this identity.
    Children(u64),
}
