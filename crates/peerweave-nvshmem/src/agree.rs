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
    let key = |pe: Pe| format!("peerweave-nvshmem/{identity:016x}/{sequence}/{}", pe.get());
    world.put(&key(inner.pe), format!("{call} {ours}").as_bytes()).map_err(NvshmemError::bootstrap(call))?;
    let mut theirs = Vec::new();
    for pe in pes {
        let text = world.get(&key(*pe)).map_err(|error| match error {
            BootstrapError::Timeout { waited, .. } => {
                Timeout { call, waited, pe: Some(inner.pe), missing: vec![*pe], lost: None }.into()
            }
            other => NvshmemError::bootstrap(call)(other),
        })?;
        let text = match text.strip_prefix(format!("{call} ").as_bytes()) {
            Some(arguments) => arguments.to_vec(),
            None => text,
        };
        theirs.push((*pe, text));
    }
    Ok(theirs)
}

/// FNV-1a: every PE finds the same number, with no words exchanged.
pub(crate) fn mix(hash: u64, number: u64) -> u64 {
    number.to_le_bytes().iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The start of an identity.
pub(crate) const SEED: u64 = 0xcbf2_9ce4_8422_2325;
