//! Creates a team from a list of members, in the call `team_of`. Only these members participate.
//!
//! Each PE has one block of words for this call, and publishes the list of members in its block.
//! The first PE of the list is the leader. The leader waits until all members have published the
//! same list. Then the leader chooses a team slot: a set of control words for one team on every PE.
//! The slot must be free on all members. The leader asks each member to take the slot. The member
//! reserves the slot and resets its own control words in the slot. Finally, the leader publishes to
//! each member that the team is created.
//!
//! The state word in a block contains the number of the call and its phase. Only the owner of the
//! block starts a call in the block. The owner and the leader change the phase of the call. Any
//! other member may only end a call that waits. If it ends the call because of different lists, it
//! first writes the other list to the block. Each change is a
//! compare-and-swap of the whole state word. So a change fails if the call has already ended.

use crate::memory::layout::{MAX_TEAMS, TeamCallWords};
use crate::ops::shared::Shared;
use crate::sync::team::TeamState;
use crate::sync::wait::{Limit, Stop, Waiter};
use peerweave_core::backend::{TeamId, TeamRecord};
use peerweave_core::{Error, Mismatch, PeerCause, TeamName, Timeout};
use peerweave_types::Pe;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{MutexGuard, TryLockError};
use std::time::Duration;

const CALL: &str = "team_of";

/// Maximum number of PEs that an error message shows of each list of members.
const SHOWN: usize = 16;

/// Phases of a call. A phase is the low byte of [`TeamCallWords::state`].
mod phase {
    /// The PE has no active call of `team_of`.
    pub(super) const NONE: u64 = 0;
    /// Phase of a call that waits for the other members.
    pub(super) const WAITING: u64 = 1;
    /// The leader has chosen a slot and asks the member to take the slot.
    pub(super) const ASKED: u64 = 2;
    /// The member has reserved the leader's slot, and has reset its own control words in this slot.
    pub(super) const TAKEN: u64 = 3;
    /// The member has refused the slot that the leader has chosen, because the slot is no longer
    /// free on this member.
    pub(super) const REFUSED: u64 = 4;
    /// The leader has created the team. The call of the member succeeds.
    pub(super) const MADE: u64 = 5;
    /// Phase of a call whose slot the leader has given up, because some member did not take the
    /// slot. All members then try again.
    pub(super) const CANCELLED: u64 = 6;
    /// Phase of a call that has failed, because no slot is free on all members.
    pub(super) const FULL: u64 = 7;
    /// Phase of a call that another member has ended, because a PE was lost or did not arrive
    /// before the deadline. The state word names this PE.
    pub(super) const LATE: u64 = 8;
    /// Another PE is ending the call, because some PE passed a different list. The PE that ends the
    /// call writes the different list to the block of the member, and then sets the phase
    /// [`MISMATCH`].
    pub(super) const ENDING: u64 = 9;
    /// Phase of a call that failed because another PE passed a different list. The state word names
    /// this other PE, and the block of the member contains its list.
    pub(super) const MISMATCH: u64 = 10;
}

/// Value in the place of a member's state word, while the leader waits for all members. The value
/// means that the member does not wait yet, or waits with a different list of members. No state
/// word has this value.
const UNSEEN: u64 = u64::MAX;

/// Returns the state word of call `number` in the given phase. `pe` is the PE that the state names.
fn state(number: u64, phase: u64, pe: usize) -> u64 {
    number << 24 | (pe as u64) << 8 | phase
}

fn phase_of(state: u64) -> u64 {
    state & 0xff
}

fn pe_of(state: u64) -> usize {
    (state >> 8 & 0xffff) as usize
}

/// One attempt of a call of `team_of` on this PE.
struct TeamCall<'a> {
    shared: &'a Shared,
    members: &'a [usize],
    rank: usize,
    number: u64,
}

impl Shared {
    /// Creates a team. `members` lists the PEs in the order of their ranks, and includes this PE.
    /// Collective over these PEs.
    pub(crate) fn team_of(&self, members: &[Pe]) -> Result<TeamRecord, Error> {
        let pes: Vec<usize> = members.iter().map(|pe| pe.index()).collect();
        let rank = pes.iter().position(|&pe| pe == self.peers.me).expect("peerweave-core bug: this PE is not a member");
        let mut waiter = self.peers.waiter(Limit::Deadline(self.peers.deadline));
        let made = self.one_at_a_time(&mut waiter).and_then(|mut calls| {
            loop {
                *calls += 1;
                let call = TeamCall { shared: self, members: &pes, rank, number: *calls };
                call.publish();
                let made = if rank == 0 { call.lead(&mut waiter) } else { call.follow(&mut waiter) };
                call.end();
                // `None` means that another call has taken the slot in the meantime. All members
                // try again.
                if let Some(team) = made? {
                    return Ok(team);
                }
            }
        });
        let team = made.map_err(|stop| self.peers.record_stop(stop).into_error())?;
        let id = team.id;
        self.teams.insert(team);
        Ok(TeamRecord { id, members: members.to_vec() })
    }

    /// Waits until no other thread of this PE runs `team_of`, and returns the lock that allows only
    /// one such call at a time. The value in the lock is the number of attempts that this PE has
    /// made so far.
    fn one_at_a_time<'a>(&'a self, waiter: &mut Waiter<'_>) -> Result<MutexGuard<'a, u64>, Stop> {
        let look = || match self.team_calls.try_lock() {
            Ok(calls) => Some(calls),
            Err(TryLockError::Poisoned(calls)) => Some(calls.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let timeout = |waited| {
            let (team, missing) = (self.teams.world().name(), Vec::new());
            Timeout { running: Some(CALL), ..Timeout::new(CALL, team, waited, missing) }.into()
        };
        look().map_or_else(|| waiter.until(look, |_| Ok(()), timeout), Ok)
    }
}

impl<'a> TeamCall<'a> {
    fn words(&self, pe: usize) -> &'a TeamCallWords {
        self.shared.peers.segments.team_call(pe)
    }

    fn mine(&self) -> &'a TeamCallWords {
        self.words(self.shared.peers.me)
    }

    /// Returns the members except this PE.
    fn others(&self) -> impl Iterator<Item = usize> + use<'a> {
        let me = self.shared.peers.me;
        self.members.iter().copied().filter(move |&pe| pe != me)
    }

    /// Publishes the list of members of this call, and the team slots that are free on this PE.
    /// From then on, the call waits for the other members.
    fn publish(&self) {
        let (words, members) = (self.mine(), self.shared.peers.segments.team_call_members(self.shared.peers.me));
        let (free, last_epochs) = self.shared.teams.free_slots();
        words.state.store(state(self.number, phase::NONE, 0), Ordering::Relaxed);
        // A reader that sees any of the stores below also sees this state.
        fence(Ordering::Release);
        words.size.store(self.members.len() as u64, Ordering::Relaxed);
        words.free_slots.store(free, Ordering::Relaxed);
        words.last_epochs.iter().zip(last_epochs).for_each(|(word, epoch)| word.store(epoch.into(), Ordering::Relaxed));
        members.iter().zip(self.members).for_each(|(word, &pe)| word.store(pe as u32, Ordering::Relaxed));
        words.state.store(state(self.number, phase::WAITING, 0), Ordering::Release);
    }

    /// Ends the call. If the leader then tries to change the phase of the call, the change fails.
    fn end(&self) {
        self.mine().state.store(state(self.number, phase::NONE, 0), Ordering::Release);
    }

    /// Sets the phase of PE `pe`'s current `team_of` call to `to`, and stores the PE number `named`
    /// in the same state word. If the state word no longer has the value `seen`, changes nothing
    /// and returns `false`.
    fn advance(&self, pe: usize, seen: u64, to: u64, named: usize) -> bool {
        let next = state(seen >> 24, to, named);
        self.words(pe).state.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns the state word and the list of members of the `team_of` call in which PE `pe` waits
    /// for the other members. Returns `None` if PE `pe` does not wait in such a call.
    fn waiting(&self, pe: usize) -> Option<(u64, Vec<usize>)> {
        let words = self.words(pe);
        let seen = words.state.load(Ordering::Acquire);
        if phase_of(seen) != phase::WAITING {
            return None;
        }
        let list = self.list_of(pe);
        fence(Ordering::Acquire);
        (words.state.load(Ordering::Relaxed) == seen).then_some((seen, list))
    }

    /// Returns the list of members that PE `pe` has published for its latest `team_of` call.
    fn list_of(&self, pe: usize) -> Vec<usize> {
        pes_in(self.shared.peers.segments.team_call_members(pe), &self.words(pe).size)
    }

    /// Returns the state word of PE `pe` if the PE waits in a `team_of` call with the same list of
    /// members as this call.
    fn waits_with_me(&self, pe: usize) -> Option<u64> {
        self.waiting(pe).and_then(|(seen, list)| (list == self.members).then_some(seen))
    }

    // ---- the first member ----

    /// Creates the team. Only the leader calls this function. Returns `None` if another call has
    /// taken the chosen slot.
    fn lead(&self, waiter: &mut Waiter<'a>) -> Result<Option<TeamState>, Stop> {
        let teams = &self.shared.teams;
        // The last seen states of the other members. The list of a member is read only when its
        // state has changed.
        let mut seen: Vec<(usize, u64)> = self.others().map(|pe| (pe, UNSEEN)).collect();
        let mut all_wait = || {
            let own = self.mine().state.load(Ordering::Acquire);
            match phase_of(own) {
                phase::WAITING => {}
                phase::ENDING => return None,
                _ => return Some(Err(self.ended(own))),
            }
            let present = |(pe, seen): &mut (usize, u64)| {
                if self.words(*pe).state.load(Ordering::Acquire) == *seen {
                    return true;
                }
                *seen = self.waits_with_me(*pe).unwrap_or(UNSEEN);
                *seen != UNSEEN
            };
            // Every member is checked in each round, so that all states are of the same round.
            let present = seen.iter_mut().map(present).filter(|&present| present).count();
            (present == seen.len()).then(|| Ok(seen.clone()))
        };
        let arrived = match all_wait() {
            Some(arrived) => arrived,
            None => waiter.until(all_wait, |_| self.check(), |waited| self.timeout(waited))?,
        }?;
        let free = |pe| self.words(pe).free_slots.load(Ordering::Relaxed);
        let common = self.others().map(free).fold(free(self.shared.peers.me), |common, free| common & free);
        if common == 0 {
            for &(pe, seen) in &arrived {
                self.advance(pe, seen, phase::FULL, 0);
            }
            return Err(no_slot().into());
        }
        let slot = common.trailing_zeros() as usize;
        let last_epoch = |&pe: &usize| self.words(pe).last_epochs[slot].load(Ordering::Relaxed) as u32;
        let epoch = self.members.iter().map(last_epoch).max().unwrap_or(0);
        if !teams.claim(slot) {
            return Ok(None);
        }
        let team = TeamState::new(&self.shared.peers.segments, slot, self.members.to_vec(), self.rank, epoch);
        self.shared.reset(&team);
        let asked = |&(pe, seen): &(usize, u64)| {
            self.words(pe).decision.store((slot as u64) << 32 | u64::from(epoch), Ordering::Relaxed);
            self.advance(pe, seen, phase::ASKED, 0)
        };
        let all_asked = arrived.iter().all(asked);
        let replied = || {
            let reply =
                |&(pe, seen): &(usize, u64)| self.words(pe).state.load(Ordering::Acquire) != state(seen >> 24, phase::ASKED, 0);
            arrived.iter().all(reply).then_some(())
        };
        let replies = match all_asked {
            true => replied().map_or_else(|| waiter.until(replied, |_| self.check_lost(), |waited| self.timeout(waited)), Ok),
            false => Ok(()),
        };
        let taken =
            |&(pe, seen): &(usize, u64)| self.words(pe).state.load(Ordering::Acquire) == state(seen >> 24, phase::TAKEN, 0);
        if replies.is_err() || !all_asked || !arrived.iter().all(taken) {
            // No member uses the words of another member before the leader publishes that the team
            // is created. So the slot stays free on all members.
            let (to, named) = match &replies {
                Err(Stop::Failed(error)) => (phase::LATE, error.blamed().first().map_or(self.members[0], |pe| pe.index())),
                _ => (phase::CANCELLED, 0),
            };
            for &(pe, seen) in &arrived {
                for reply in [phase::ASKED, phase::TAKEN, phase::REFUSED] {
                    self.advance(pe, state(seen >> 24, reply, 0), to, named);
                }
            }
            teams.unclaim(slot);
            return replies.map(|()| None);
        }
        // A member has given up here only if this PE was stopped until the deadline of that member.
        let gone: Vec<usize> = arrived
            .iter()
            .filter(|&&(pe, seen)| !self.advance(pe, state(seen >> 24, phase::TAKEN, 0), phase::MADE, 0))
            .map(|&(pe, _)| pe)
            .collect();
        if gone.is_empty() {
            return Ok(Some(team));
        }
        // Other members have the team, and find in the words of the team that this PE failed. The
        // slot is not used again.
        let error = self.late(Duration::ZERO, gone.iter().map(|&pe| Pe::new(pe as u32)).collect());
        team.fail(&self.shared.peers, &error);
        Err(error.into())
    }

    // ---- the other members ----

    /// Runs the call of a member that is not the leader. Returns the team after the leader has
    /// created it. Returns `None` if another call has taken the team slot that the leader had
    /// chosen.
    fn follow(&self, waiter: &mut Waiter<'a>) -> Result<Option<TeamState>, Stop> {
        let (words, teams) = (self.mine(), &self.shared.teams);
        let beyond = |old: &[u64]| {
            let seen = words.state.load(Ordering::Acquire);
            (!old.contains(&phase_of(seen))).then_some(seen)
        };
        let moved = || beyond(&[phase::WAITING, phase::ENDING]);
        let seen = match moved() {
            Some(seen) => seen,
            None => waiter.until(moved, |_| self.check(), |waited| self.timeout(waited)).inspect_err(|_| self.give_up())?,
        };
        if phase_of(seen) != phase::ASKED {
            return Err(self.ended(seen).into());
        }
        let decision = words.decision.load(Ordering::Relaxed);
        let (slot, epoch) = ((decision >> 32) as usize, decision as u32);
        let team = TeamState::new(&self.shared.peers.segments, slot, self.members.to_vec(), self.rank, epoch);
        let asked = state(self.number, phase::ASKED, 0);
        let claimed = teams.claim(slot);
        if claimed {
            self.shared.reset(&team);
        }
        let reply = if claimed { phase::TAKEN } else { phase::REFUSED };
        // The change fails if the leader has withdrawn its choice of a slot.
        self.advance(self.shared.peers.me, asked, reply, 0);
        let moved = || beyond(&[reply]);
        let seen = match moved() {
            Some(seen) => Ok(seen),
            None => waiter.until(moved, |_| self.check_leader(), |waited| self.late(waited, vec![self.leader()])),
        };
        let seen = match seen {
            Ok(seen) => seen,
            // If this change fails, the leader has just created the team or ended the call.
            Err(stop) if self.advance(self.shared.peers.me, state(self.number, reply, 0), phase::NONE, 0) => {
                // If this PE has taken the slot, the slot is not used again, because other PEs may
                // use its words.
                return Err(stop);
            }
            Err(_) => words.state.load(Ordering::Acquire),
        };
        if phase_of(seen) == phase::MADE {
            return Ok(Some(team));
        }
        if claimed {
            teams.unclaim(slot);
        }
        if phase_of(seen) == phase::CANCELLED { Ok(None) } else { Err(self.ended(seen).into()) }
    }

    /// Returns the error of this PE's call after another member has ended this call. `seen` is the
    /// state word of the call, which contains the reason.
    fn ended(&self, seen: u64) -> Error {
        match phase_of(seen) {
            phase::FULL => no_slot(),
            phase::MISMATCH => {
                let others = self.shared.peers.segments.team_call_others_members(self.shared.peers.me);
                self.mismatch(pe_of(seen), &pes_in(others, &self.mine().other_size))
            }
            _ => self.late(self.shared.peers.deadline, vec![Pe::new(pe_of(seen) as u32)]),
        }
    }

    /// Withdraws this call after a failure. From then on, the leader cannot create a team that
    /// includes this PE.
    fn give_up(&self) {
        let me = self.shared.peers.me;
        for phase in [phase::WAITING, phase::ASKED] {
            self.advance(me, state(self.number, phase, 0), phase::NONE, 0);
        }
    }

    fn leader(&self) -> Pe {
        Pe::new(self.members[0] as u32)
    }

    // ---- failures ----

    /// Returns an error if this call can no longer succeed:
    ///
    /// - A member has died, has left or has called shrink.
    /// - A member waits with a different list that includes this PE. Without the error, that member
    ///   and this PE would wait for each other until the deadline. In this case, this function also
    ///   ends the call of that member, and the calls of all members that wait with the same list as
    ///   this call.
    fn check(&self) -> Result<(), Error> {
        self.check_lost()?;
        let me = self.shared.peers.me;
        for pe in self.others() {
            if let Some((seen, list)) = self.waiting(pe)
                && list != self.members
                && list.contains(&me)
            {
                let error = self.mismatch(pe, &list);
                self.end_by_mismatch(pe, seen, me, self.members);
                for (other, seen) in self.waiting_with_me() {
                    self.end_by_mismatch(other, seen, pe, &list);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns an error if a member has died, has left or has called shrink.
    fn check_lost(&self) -> Result<(), Error> {
        self.others().try_for_each(|pe| self.check_pe(pe))
    }

    fn check_leader(&self) -> Result<(), Error> {
        self.check_pe(self.members[0])
    }

    fn check_pe(&self, pe: usize) -> Result<(), Error> {
        let peers = &self.shared.peers;
        let shrinks = || peers.segments.survivors(pe).has_begun().then_some(PeerCause::Shrinks);
        match peers.liveness.gone(pe).or_else(shrinks) {
            Some(cause) => Err(peers.peer_error(CALL, self.team(), pe, cause, 0)),
            None => Ok(()),
        }
    }

    /// Ends the call of PE `pe`, whose state word is `seen`, because PE `named` passed the
    /// different list `list`. Does nothing if the call has already ended.
    fn end_by_mismatch(&self, pe: usize, seen: u64, named: usize, list: &[usize]) {
        if !self.advance(pe, seen, phase::ENDING, named) {
            return;
        }
        self.words(pe).other_size.store(list.len() as u64, Ordering::Relaxed);
        let words = self.shared.peers.segments.team_call_others_members(pe);
        words.iter().zip(list).for_each(|(word, &pe)| word.store(pe as u32, Ordering::Relaxed));
        // This change also publishes the list. It fails if the deadline of the call has passed.
        self.advance(pe, state(seen >> 24, phase::ENDING, named), phase::MISMATCH, named);
    }

    /// Returns each other member that waits in a call with the same list of members as this call,
    /// with its state word.
    fn waiting_with_me(&self) -> impl Iterator<Item = (usize, u64)> {
        self.others().filter_map(|pe| Some((pe, self.waits_with_me(pe)?)))
    }

    /// Returns the error for an expired deadline. The error names the members that have not called
    /// `team_of` with the same list. Also ends the calls of the other members that wait with this
    /// list, because this PE no longer participates. Their calls fail with a timeout, too.
    fn timeout(&self, waited: Duration) -> Error {
        let missing: Vec<usize> = self.others().filter(|&pe| self.waits_with_me(pe).is_none()).collect();
        // If all members have arrived, the leader was stopped.
        let missing = if missing.is_empty() { vec![self.members[0]] } else { missing };
        for (pe, seen) in self.waiting_with_me() {
            self.advance(pe, seen, phase::LATE, missing[0]);
        }
        self.late(waited, missing.into_iter().map(|pe| Pe::new(pe as u32)).collect())
    }

    fn late(&self, waited: Duration, missing: Vec<Pe>) -> Error {
        Error::from(Timeout::new(CALL, self.team(), waited, missing))
    }

    /// Returns the error for a mismatch of the lists of members. PE `pe` passed `list`, and this PE
    /// passed a different list.
    fn mismatch(&self, pe: usize, list: &[usize]) -> Error {
        let describe = |list: &[usize]| {
            let shown: Vec<String> = list.iter().take(SHOWN).map(usize::to_string).collect();
            let rest = if list.len() > SHOWN { format!(", ... ({} PEs)", list.len()) } else { String::new() };
            format!("{CALL} of PEs [{}{rest}]", shown.join(", "))
        };
        let (mine, theirs) = (describe(self.members), describe(list));
        Error::Mismatch(Box::new(Mismatch { team: self.team(), pe: Pe::new(pe as u32), mine, theirs }))
    }

    /// Returns the team that the errors of this call name. The new team has no number yet, so the
    /// errors name the world.
    fn team(&self) -> TeamName {
        TeamName { id: TeamId::WORLD, size: self.shared.n_pes() }
    }
}

/// Reads a list of PEs. The list consists of the first `size` words of `words`, with one PE number
/// in each word.
fn pes_in(words: &[AtomicU32], size: &AtomicU64) -> Vec<usize> {
    words.iter().take(size.load(Ordering::Relaxed) as usize).map(|word| word.load(Ordering::Relaxed) as usize).collect()
}

fn no_slot() -> Error {
    Error::TooManyTeams { call: CALL, max_teams: MAX_TEAMS }
}
