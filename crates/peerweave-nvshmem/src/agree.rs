//! Collective set-up calls: everybody comes, with the same arguments, or nobody calls NVSHMEM.
//!
//! NVSHMEM's own set-up calls wait for ever for a PE that does not come, and corrupt the heap where PEs allocate different sizes. Where the PEs met by a
//! rendezvous, they first meet there: it names who is missing, who was lost, and who came with something else. Then each goes in, and they meet once more, so
//! that nobody is inside NVSHMEM for one who is kept out. Without a rendezvous, only the deadline is left.
//!
//! Invariant: on every PE the outcome is an error or on none.

use std::sync::PoisonError;

use peerweave_bootstrap::{BootstrapError, Rendezvous};
use peerweave_types::Pe;

use crate::context::{Entered, Inner};
use crate::error::{Disagree, NvshmemError, Timeout};

/// Who takes part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Members<'a> {
    /// All PEs.
    World,
    /// The PEs of a team, in its order; the number tells teams apart, and is the same on every member.
    Team(&'a [Pe], u64),
}

/// Comes to a collective call with its arguments, or with why this PE cannot. Gives the way into NVSHMEM, which all others have got by then too.
pub(crate) fn arrive<'a>(
    inner: &'a Inner,
    call: &'static str,
    members: Members<'_>,
    arguments: &str,
    able: Result<(), NvshmemError>,
) -> Result<Entered<'a>, NvshmemError> {
    inner.alive(call)?;
    let Some(world) = &inner.world else { return able.and_then(|()| inner.go_in(call)) };
    match members {
        Members::World => {
            compare(inner, call, arguments, able)?;
            // Who does not get in must not leave the others there alone.
            let entered = inner.go_in(call);
            compare(inner, call, SEEN, entered.as_ref().map(drop).map_err(Clone::clone))?;
            entered
        }
        Members::Team(pes, identity) => meet(inner, world, call, pes, identity, &shown(arguments, &able), able),
    }
}

/// Compares with all PEs what this one has, or why it has nothing, where the PEs have a rendezvous.
pub(crate) fn compare(
    inner: &Inner,
    call: &'static str,
    arguments: &str,
    able: Result<(), NvshmemError>,
) -> Result<(), NvshmemError> {
    let Some(world) = &inner.world else { return able };
    let ours = shown(arguments, &able);
    let theirs = world.exchange(call, ours.as_bytes()).map_err(NvshmemError::bootstrap(call));
    // A mistake of this PE is its own error, whoever else came.
    able?;
    let pes = (0..inner.n_pes).map(Pe::new);
    alike(call, pes.zip(theirs?), &ours)
}

/// What the others see of a PE.
fn shown(arguments: &str, able: &Result<(), NvshmemError>) -> String {
    match able {
        Ok(()) => arguments.to_owned(),
        Err(error) => format!("cannot: {error}"),
    }
}

/// An error that names the first PE that has something else.
fn alike(call: &'static str, theirs: impl IntoIterator<Item = (Pe, Vec<u8>)>, ours: &str) -> Result<(), NvshmemError> {
    match theirs.into_iter().find(|(_, text)| text != ours.as_bytes()) {
        Some((pe, text)) => {
            Err(Disagree { call, pe, theirs: String::from_utf8_lossy(&text).into_owned(), ours: ours.to_owned() }.into())
        }
        None => Ok(()),
    }
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
/// First each shows what it comes with, then, having seen all, that it has, and that it may go in: only then somebody calls NVSHMEM. Who gives up says so
/// over what it showed.
fn meet<'a>(
    inner: &'a Inner,
    world: &Rendezvous,
    call: &'static str,
    pes: &[Pe],
    identity: u64,
    ours: &str,
    able: Result<(), NvshmemError>,
) -> Result<Entered<'a>, NvshmemError> {
    let sequence = inner.count(Counted::Meetings(identity));
    let key_of = |sequence: u64, step: &str, pe: Pe| {
        let life = inner.life;
        format!("peerweave-nvshmem/{life:016x}/{identity:016x}/{sequence}/{step}/{}", pe.get())
    };
    let key = |step: &str, pe: Pe| key_of(sequence, step, pe);
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
    let own = format!("{call} {ours}");
    let theirs = show("came", &own).and_then(|()| gather("came"));
    let agreed = able.and_then(|()| {
        let arguments = |(pe, text): (Pe, Vec<u8>)| match text.strip_prefix(format!("{call} ").as_bytes()) {
            Some(arguments) => (pe, arguments.to_vec()),
            None => (pe, text),
        };
        alike(call, theirs?.into_iter().map(arguments), ours)
    });
    if let Err(error) = agreed {
        // The others learn at once what they would only learn at their deadline.
        let _ = show("seen", "saw another call");
        return Err(error);
    }
    // Nobody who is here reads what was shown at the meeting before.
    for step in ["came", "seen"] {
        let _ = world.remove(&key_of(sequence - 1, step, inner.pe));
    }
    let entered = inner.go_in(call);
    show("seen", &shown(SEEN, &entered.as_ref().map(drop).map_err(Clone::clone)))?;
    let entered = entered?;
    alike(call, gather("seen")?, SEEN)?;
    Ok(entered)
}

/// What a PE shows that has seen the same from all, and is inside.
const SEEN: &str = "all came with the same";

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

impl Inner {
    /// The next number.
    pub(crate) fn count(&self, what: Counted) -> u64 {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(what).or_default();
        *count += 1;
        *count
    }
}

/// FNV-1a: every PE finds the same number, with no words exchanged.
pub(crate) fn mix(hash: u64, number: u64) -> u64 {
    number.to_le_bytes().iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The start of an identity.
pub(crate) const SEED: u64 = 0xcbf2_9ce4_8422_2325;
