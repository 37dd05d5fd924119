//! Creates a team from a list of PEs, its members. Only these PEs call `team_of`.
//!
//! The members exchange values in the store of the rendezvous: each calling PE stores its list of
//! members. A PE makes one such call at a time. So if a member has stored a different list that
//! also contains this PE, the calls of both PEs cannot complete. The PE that detects the difference
//! stores a refusal for the member.
//!
//! When all members have called, they form a temporary parent team and split this team. Each call
//! has a random number, and the names of the exchanges depend on the numbers of all members. So a
//! call does not read values of an earlier call that failed.

use std::time::{Duration, Instant};

use peerweave_bootstrap::{BootstrapError, Rendezvous};
use peerweave_core::Error;
use peerweave_core::backend::{SplitPart, TeamId, TeamRecord};
use peerweave_types::Pe;

use super::Cuda;
use super::agreement::exchange_by_keys;
use super::split::Made;
use crate::backend::error::mismatch;
use crate::backend::lock::lock;
use crate::backend::state::State;
use crate::backend::teams::{Kernels, TeamOf, digest};
use crate::collective::random;

const CALL: &str = "team_of";

/// Maximum number of PEs that an error message shows if it contains a list of members.
const SHOWN: usize = 16;

/// The shortest and the longest pause between two reads of the members' values from the rendezvous.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// A value that a PE stores in the rendezvous for a `team_of` call: its own call, or a refusal that
/// ends a call of another PE. For a call, `members` is the list that the PE passed, and `number` is
/// a random number that identifies the call. For a refusal, `members` is a list that differs from
/// the list of the refused call, and `number` is the PE that passed it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    number: u64,
    members: Vec<Pe>,
}

impl Listed {
    fn to_bytes(&self) -> Vec<u8> {
        let members = self.members.iter().flat_map(|pe| pe.get().to_le_bytes());
        self.number.to_le_bytes().into_iter().chain(members).collect()
    }

    /// Parses the bytes that a PE has stored in the rendezvous. Returns `None` if their length is
    /// invalid.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (number, members) = bytes.split_first_chunk()?;
        let (members, rest) = members.as_chunks();
        let members = members.iter().map(|pe| Pe::new(u32::from_le_bytes(*pe))).collect();
        rest.is_empty().then_some(Self { number: u64::from_le_bytes(*number), members })
    }
}

/// Returns the description of a `team_of` call with these members, for error messages.
fn describe(members: &[Pe]) -> String {
    let shown: Vec<String> = members.iter().take(SHOWN).map(|pe| pe.get().to_string()).collect();
    let rest = if members.len() > SHOWN { format!(", ... ({} PEs)", members.len()) } else { String::new() };
    format!("{CALL} of PEs [{}{rest}]", shown.join(", "))
}

fn call_key(pe: Pe) -> String {
    format!("peerweave/team_of/{}", pe.get())
}

fn refusal_key(pe: Pe, number: u64) -> String {
    format!("peerweave/team_of/{}/{number:016x}", pe.get())
}

impl Cuda {
    /// Creates a team with the PEs `members`, in this order. This PE must be a member. All members
    /// must make this call.
    pub(super) fn team_of_members(&self, members: &[Pe]) -> Result<TeamRecord, Error> {
        let state = &*self.state;
        let gpu = state.gpu(CALL)?;
        let rendezvous = gpu.rendezvous();
        // A PE makes one such call at a time.
        let _making = lock(&state.making);
        let [a, b, c, d, e, f, g, h, ..] = random().map_err(state.portable(CALL))?;
        let number = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let mine = Listed { number, members: members.to_vec() };
        let made = state.find_members(rendezvous, &mine).and_then(|numbers| self.split_members(rendezvous, members, &numbers));
        // No member needs the stored list any more.
        let removed = rendezvous.remove(&call_key(state.job.my_pe));
        let record = made?;
        removed.map_err(|error| state.portable(CALL)(error.into()))?;
        Ok(record)
    }

    /// Creates the team after all members have called `team_of` with the same list. `numbers` has
    /// one random number for each member, which identifies the member's call. The label of the
    /// team's exchanges depends on these numbers, so a later call with the same list has a
    /// different label.
    fn split_members(&self, rendezvous: &Rendezvous, members: &[Pe], numbers: &[u64]) -> Result<TeamRecord, Error> {
        let state = &*self.state;
        let gpu = state.gpu(CALL)?;
        let me = members.iter().position(|pe| *pe == state.job.my_pe).expect("peerweave-core checks that this PE is a member");
        let label = format!("{:016x}", digest((CALL, numbers)));
        let parent = TeamOf::new(TeamId::WORLD, members, me, label.clone(), Kernels::OneHost(None), None);
        let exchange =
            |step: &str, blob: &[u8]| Ok(exchange_by_keys(rendezvous, &parent, &format!("peerweave/{label}{step}"), blob)?);
        let mut splits = lock(&state.splits);
        let sentinel = random().map_err(state.portable(CALL))?;
        let attached: Vec<u8> = splits.to_le_bytes().into_iter().chain(sentinel).collect();
        let attached = exchange("/attached", &attached).map_err(state.portable(CALL))?;
        // All members have found each other, so no member needs the stored list any more.
        rendezvous.remove(&call_key(state.job.my_pe)).map_err(|error| state.portable(CALL)(error.into()))?;
        let made = Made { call: CALL, name: state.world(), path: format!("{:016x}", digest((&label, "team"))) };
        let part = Some(SplitPart { color: 0, key: 0 });
        let record = self.split_parent(&gpu, &parent, &exchange, made, &mut splits, &attached, part)?;
        let record = record.unwrap_or_else(|| panic!("peerweave-cuda bug: this PE is a member, but the split returned no team"));
        if let Some(team) = state.teams.find(record.id) {
            // The new team's first exchange removes the values of the last exchange above.
            std::mem::swap(&mut *lock(&team.stored), &mut *lock(&parent.stored));
        }
        Ok(record)
    }
}

impl State {
    /// Waits until all members have called `team_of` with the same list. Returns the random numbers
    /// of their calls.
    fn find_members(&self, rendezvous: &Rendezvous, mine: &Listed) -> Result<Vec<u64>, Error> {
        let me = self.job.my_pe;
        let failed = |error: BootstrapError| self.portable(CALL)(error.into());
        let differ = |pe, theirs: &[Pe]| mismatch(self.world(), pe, describe(&mine.members), describe(theirs));
        let read = |key: &str| rendezvous.try_get(key).map(|value| value.and_then(|bytes| Listed::from_bytes(&bytes)));
        rendezvous.put(&call_key(me), &mine.to_bytes()).map_err(failed)?;
        let (start, mut pause) = (Instant::now(), PAUSES[0]);
        let mut seen = vec![false; mine.members.len()];
        loop {
            // The value of a PE that died may still be in the store, so losses are checked first.
            if let Some((pe, cause)) = rendezvous.losses().into_iter().find(|(pe, _)| mine.members.contains(pe)) {
                return Err(failed(BootstrapError::PeLost { call: CALL.to_owned(), pe, cause }));
            }
            // A member may have failed and called again since the previous iteration. So all
            // members must be waiting in the same iteration.
            let mut numbers = Vec::with_capacity(mine.members.len());
            let mut waits = vec![false; mine.members.len()];
            for (rank, &pe) in mine.members.iter().enumerate() {
                let Some(theirs) = read(&call_key(pe)).map_err(failed)? else { continue };
                if theirs.members == mine.members {
                    numbers.push(theirs.number);
                    (seen[rank], waits[rank]) = (true, true);
                } else if theirs.members.contains(&me) {
                    self.refuse(rendezvous, mine, pe, &theirs).map_err(failed)?;
                    return Err(differ(pe, &theirs.members));
                }
            }
            if numbers.len() == mine.members.len() {
                return Ok(numbers);
            }
            let refusal = refusal_key(me, mine.number);
            if let Some(theirs) = read(&refusal).map_err(failed)? {
                rendezvous.remove(&refusal).map_err(failed)?;
                rendezvous.remove(&call_key(me)).map_err(failed)?;
                self.spread(rendezvous, mine, &theirs).map_err(failed)?;
                return Err(differ(Pe::new(theirs.number as u32), &theirs.members));
            }
            if start.elapsed() >= self.deadline {
                // A member that has stopped waiting has failed because other members have not
                // called. So such a member counts as missing only if all members have called.
                let all_called = !seen.contains(&false);
                let missing = mine.members.iter().zip(seen.iter().zip(&waits));
                let missing = missing.filter(|(_, (seen, waits))| if all_called { !**waits } else { !**seen });
                let missing = missing.map(|(pe, _)| *pe).collect();
                return Err(failed(BootstrapError::Timeout { call: CALL.to_owned(), waited: start.elapsed(), missing }));
            }
            std::thread::sleep(pause.min(self.deadline.saturating_sub(start.elapsed())));
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    /// Ends two calls of `team_of` that cannot complete, because their member lists differ: the
    /// call `mine` of this PE, and the call `theirs` of PE `pe`. Removes `mine` from the
    /// rendezvous. Stores a refusal for `pe`, and for each PE that waits with the same list as
    /// `mine`. A PE that finds a refusal for its call fails this call.
    fn refuse(&self, rendezvous: &Rendezvous, mine: &Listed, pe: Pe, theirs: &Listed) -> Result<(), BootstrapError> {
        let me = self.job.my_pe;
        rendezvous.remove(&call_key(me))?;
        let own = Listed { number: me.get().into(), members: mine.members.clone() };
        rendezvous.put(&refusal_key(pe, theirs.number), &own.to_bytes())?;
        self.spread(rendezvous, mine, &Listed { number: pe.get().into(), members: theirs.members.clone() })
    }

    /// Stores `refusal` for each other PE that waits in a `team_of` call with the member list of
    /// `mine`, so that these calls fail too. `mine` is a call of this PE that cannot complete.
    fn spread(&self, rendezvous: &Rendezvous, mine: &Listed, refusal: &Listed) -> Result<(), BootstrapError> {
        let others = mine.members.iter().copied().filter(|pe| *pe != self.job.my_pe && u64::from(pe.get()) != refusal.number);
        for pe in others {
            let waits = rendezvous.try_get(&call_key(pe))?.and_then(|bytes| Listed::from_bytes(&bytes));
            if let Some(waits) = waits.filter(|waits| waits.members == mine.members) {
                rendezvous.put(&refusal_key(pe, waits.number), &refusal.to_bytes())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_list_converts_to_stored_bytes_and_back() {
        for members in [vec![], vec![Pe::new(7)], vec![Pe::new(4095), Pe::new(0)]] {
            let listed = Listed { number: 1 << 40 | 3, members };
            assert_eq!(Listed::from_bytes(&listed.to_bytes()), Some(listed));
        }
        assert_eq!(Listed::from_bytes(&[0; 11]), None);
        assert_eq!(Listed::from_bytes(&[0; 7]), None);
    }
}
