//! Collective set-up calls: everybody comes, with the same arguments, or nobody calls NVSHMEM.
//!
//! NVSHMEM's own set-up calls wait for ever for a PE that does not come, and corrupt the heap where PEs allocate different sizes. Where the PEs met by a
//! rendezvous, they first meet there: it names who is missing, who was lost, and who came with something else. Without one, only the deadline is left.
//!
//! Invariant: on every PE the outcome is an error or on none.

use std::sync::PoisonError;

use peerweave_bootstrap::{BootstrapError, Rendezvous};
use peerweave_types::Pe;

use crate::context::Inner;
use crate::error::{Disagree, NvshmemError, Timeout};

/// Who takes part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Members<'a> {
    /// All PEs.
    World,
    /// The PEs of a team, in its order; the number tells teams apart, and is the same on every member.
    Team(&'a [Pe], u64),
}

/// Comes to a collective call with its arguments, or with why this PE cannot.
pub(crate) fn arrive(
    inner: &Inner,
    call: &'static str,
    members: Members<'_>,
    arguments: &str,
    able: Result<(), NvshmemError>,
) -> Result<(), NvshmemError> {
    inner.alive(call)?;
    let Some(world) = &inner.world else { return able };
    let ours = match &able {
        Ok(()) => arguments.to_owned(),
        Err(error) => format!("cannot: {error}"),
    };
    let theirs = match members {
        Members::World => world
            .exchange(call, ours.as_bytes())
            .map_err(NvshmemError::bootstrap(call))
            .map(|all| all.into_iter().enumerate().map(|(pe, text)| (Pe::new(pe as u32), text)).collect::<Vec<_>>()),
        Members::Team(pes, identity) => meet(inner, world, call, pes, identity, &ours),
    };
    // A mistake of this PE is its own error, whoever else came.
    able?;
    for (pe, text) in theirs? {
        if text != ours.as_bytes() {
            return Err(Disagree { call, pe, theirs: String::from_utf8_lossy(&text).into_owned(), ours }.into());
        }
    }
    Ok(())
}

/// What was taken for a call, to be kept until it is over; and whether it could be, for the others.
pub(crate) fn taken<T>(result: Result<T, NvshmemError>) -> (Option<T>, Result<(), NvshmemError>) {
    match result {
        Ok(taken) => (Some(taken), Ok(())),
        Err(error) => (None, Err(error)),
    }
}

/// The rendezvous has collective calls for everybody alone; some meet by keys.
///
/// First each shows what it comes with, then, having seen all, that it has: only then somebody calls NVSHMEM. Who gives up says so over what it showed.
fn meet(
    inner: &Inner,
    world: &Rendezvous,
    call: &'static str,
    pes: &[Pe],
    identity: u64,
    ours: &str,
) -> Result<Vec<(Pe, Vec<u8>)>, NvshmemError> {
    let sequence = {
        let mut sequences = inner.sequences.lock().unwrap_or_else(PoisonError::into_inner);
        let sequence = sequences.entry(identity).or_default();
        *sequence += 1;
        *sequence
    };
    let key = |step: &str, pe: Pe| {
        let life = inner.life;
        format!("peerweave-nvshmem/{life:016x}/{identity:016x}/{sequence}/{step}/{}", pe.get())
    };
    let show = |step, text: &str| world.put(&key(step, inner.pe), text.as_bytes()).map_err(NvshmemError::bootstrap(call));
    let gather = |step| -> Result<Vec<(Pe, Vec<u8>)>, NvshmemError> {
        let mut theirs = Vec::new();
        for pe in pes {
            let text = world.get(&key(step, *pe)).map_err(|error| {
                // What cannot be shown is what the others will miss.
                let _ = show(step, "gave up");
                // Who saw this PE come before waits for its next word.
                let _ = show("seen", "gave up");
                match error {
                    BootstrapError::Timeout { waited, .. } => {
                        // The first is the one that was waited for; others may not be there either.
                        let absent = |other: &Pe| other == pe || matches!(world.try_get(&key(step, *other)), Ok(None));
                        let missing = pes.iter().copied().filter(absent).collect();
                        Timeout { call, waited, pe: Some(inner.pe), missing, lost: None }.into()
                    }
                    other => NvshmemError::bootstrap(call)(other),
                }
            })?;
            theirs.push((*pe, text));
        }
        Ok(theirs)
    };
    show("came", &format!("{call} {ours}"))?;
    let mut theirs = gather("came")?;
    let own = format!("{call} {ours}");
    if theirs.iter().all(|(_, text)| *text == own.as_bytes()) {
        show("seen", SEEN)?;
        if let Some((pe, text)) = gather("seen")?.into_iter().find(|(_, text)| text != SEEN.as_bytes()) {
            return Err(Disagree { call, pe, theirs: String::from_utf8_lossy(&text).into_owned(), ours: own }.into());
        }
    } else {
        // The others learn at once what they would only learn at their deadline.
        show("seen", "saw another call")?;
    }
    for (_, text) in &mut theirs {
        if let Some(arguments) = text.strip_prefix(format!("{call} ").as_bytes()) {
            *text = arguments.to_vec();
        }
    }
    Ok(theirs)
}

/// What a PE shows that has seen the same from all.
const SEEN: &str = "all came with the same";

/// FNV-1a: every PE finds the same number, with no words exchanged.
pub(crate) fn mix(hash: u64, number: u64) -> u64 {
    number.to_le_bytes().iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The start of an identity.
pub(crate) const SEED: u64 = 0xcbf2_9ce4_8422_2325;
