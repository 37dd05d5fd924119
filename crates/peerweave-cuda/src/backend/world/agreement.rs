//! Calls that all members of a team make together on the host: allocations, releases and splits.
//!
//! Before a call has any effect, the members exchange descriptions of their calls. If the
//! descriptions differ, every member gets an error, and no member executes its call.

use std::time::{Duration, Instant};

use peerweave_bootstrap::{BootstrapError, Rendezvous};
use peerweave_core::Error;
use peerweave_core::backend::TeamId;

use crate::backend::error::{mismatch, portable};
use crate::backend::lock::lock;
use crate::backend::state::State;
use crate::backend::teams::TeamOf;
use crate::error::CudaError;

/// Pause between two attempts of [`value_of`] to read a member's value from the rendezvous. If any
/// PE of the job is lost, [`Rendezvous::get`] fails at once instead of waiting for the value. If
/// the lost PE is not in the team, [`value_of`] therefore tries again.
const ASK_AGAIN: Duration = Duration::from_millis(1);

impl State {
    /// Checks that all members of a team make the same call. `mine` describes the call of this PE.
    ///
    /// # Errors
    /// [`Error::Mismatch`] with the first member whose call differs. Errors of the rendezvous.
    pub(super) fn agree(&self, rendezvous: &Rendezvous, team: &TeamOf, call: &'static str, mine: &str) -> Result<(), Error> {
        self.agree_and_exchange(rendezvous, team, call, mine, &[]).map(drop)
    }

    /// Like [`agree`](Self::agree), but each member also passes bytes. Returns the bytes of all
    /// members.
    pub(super) fn agree_and_exchange(
        &self,
        rendezvous: &Rendezvous,
        team: &TeamOf,
        call: &'static str,
        mine: &str,
        attached: &[u8],
    ) -> Result<Vec<Vec<u8>>, Error> {
        let mut agreements = lock(&team.agreements);
        let label = format!("peerweave/{}/{agreements}", team.path);
        *agreements += 1;
        let mut blob = (mine.len() as u32).to_le_bytes().to_vec();
        blob.extend_from_slice(mine.as_bytes());
        blob.extend_from_slice(attached);
        let all = exchange(rendezvous, team, &label, &blob).map_err(|error| portable(call, team.name(), error.into()))?;
        let parts = |blob: &[u8]| {
            let (len, rest) = blob.split_first_chunk()?;
            let (text, attached) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            Some((String::from_utf8_lossy(text).into_owned(), attached.to_vec()))
        };
        let mut everything = Vec::with_capacity(all.len());
        for (rank, blob) in all.iter().enumerate() {
            let (theirs, attached) = parts(blob).unwrap_or_default();
            if theirs != mine {
                return Err(mismatch(team.name(), team.members[rank], mine.to_owned(), theirs));
            }
            everything.push(attached);
        }
        Ok(everything)
    }
}

/// Exchanges bytes among the members of a team under `label`, which no other exchange uses.
pub(super) fn exchange(rendezvous: &Rendezvous, team: &TeamOf, label: &str, blob: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
    // Only the team of all PEs can use the exchanges of the rendezvous. In any other team, even one
    // with all PEs, ranks and calls have another order.
    if team.id == TeamId::WORLD {
        return rendezvous.exchange(label, blob);
    }
    exchange_by_keys(rendezvous, team, label, blob)
}

/// Like [`exchange`], but always exchanges the bytes through values in the rendezvous. Each member
/// stores its bytes under a key. [`Rendezvous::exchange`] is not used, because all PEs would have
/// to call it, in the same order.
pub(super) fn exchange_by_keys(
    rendezvous: &Rendezvous,
    team: &TeamOf,
    label: &str,
    blob: &[u8],
) -> Result<Vec<Vec<u8>>, BootstrapError> {
    if let [_] = *team.members {
        return Ok(vec![blob.to_vec()]);
    }
    let key = |rank: usize| format!("{label}/{rank}");
    rendezvous.put(&key(team.me), blob)?;
    let all = (0..team.members.len())
        .map(|rank| if rank == team.me { Ok(blob.to_vec()) } else { value_of(rendezvous, team, &key(rank), rank) })
        .collect::<Result<Vec<_>, _>>()?;
    // Every member has stored its value for this exchange, so every member has read all values of
    // the previous exchange. So this PE removes its previous value.
    let mut stored = lock(&team.stored);
    stored.push_back(key(team.me));
    if stored.len() > 1
        && let Some(read) = stored.pop_front()
    {
        rendezvous.remove(&read)?;
    }
    Ok(all)
}

/// Waits until a member has stored its value in the rendezvous, and returns the value. Ignores the
/// loss of PEs that are not members.
fn value_of(rendezvous: &Rendezvous, team: &TeamOf, key: &str, rank: usize) -> Result<Vec<u8>, BootstrapError> {
    let start = Instant::now();
    loop {
        match rendezvous.get(key) {
            Err(BootstrapError::PeLost { pe, .. }) if !team.members.contains(&pe) => {}
            Err(BootstrapError::Timeout { call, waited, .. }) => {
                return Err(BootstrapError::Timeout { call, waited, missing: vec![team.members[rank]] });
            }
            // This includes the loss of a member, if that was the first loss. After several losses,
            // the rendezvous reports only the first lost PE, so the code below looks up the other
            // lost PEs.
            other => return other,
        }
        if let Some(value) = rendezvous.try_get(key)? {
            return Ok(value);
        }
        if let Some((pe, cause)) = rendezvous.losses().into_iter().find(|(pe, _)| team.members.contains(pe)) {
            return Err(BootstrapError::PeLost { call: format!("get({key:?})"), pe, cause });
        }
        if start.elapsed() >= rendezvous.deadline() {
            let missing = vec![team.members[rank]];
            return Err(BootstrapError::Timeout { call: format!("get({key:?})"), waited: start.elapsed(), missing });
        }
        std::thread::sleep(ASK_AGAIN);
    }
}

/// Returns a closure that exchanges bytes among the members by [`exchange`]. The closure takes a
/// name and the bytes of this PE. The label of the exchange is `label`, followed by this name.
pub(super) fn exchange_of<'a>(
    rendezvous: &'a Rendezvous,
    team: &'a TeamOf,
    label: String,
) -> impl Fn(&str, &[u8]) -> Result<Vec<Vec<u8>>, CudaError> + 'a {
    move |step, blob| Ok(exchange(rendezvous, team, &format!("{label}{step}"), blob)?)
}
