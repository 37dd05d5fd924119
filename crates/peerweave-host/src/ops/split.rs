//! Splits and destroys teams. The ranks of the parent exchange their requests, and each rank
//! computes the same result.

use crate::memory::layout::{MAILBOX_SLOTS, MAX_TEAMS};
use crate::memory::line::Line;
use crate::ops::collective::{CollectiveTask, Purpose, split_detail};
use crate::ops::shared::{COMPLETION_GRACE, Shared};
use crate::sync::step::progress_before_next;
use crate::sync::team::{TeamRef, TeamState};

use crate::sync::wait::{Limit, Stop};
use peerweave_core::backend::{Collective, CollectiveKind, Place, SplitCall, SplitPart, TeamId, TeamRecord};
use peerweave_core::{Error, Timeout};
use peerweave_types::{DType, Pe, Rank, ReduceOp};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Maximum number of attempts of a split. All ranks try again if another split has taken the team
/// slot that a new team would use.
const ATTEMPTS: usize = 64;

fn no_slot(call: SplitCall) -> Error {
    Error::TooManyTeams { call: call.name(), max_teams: MAX_TEAMS }
}

/// Number of 64-bit words in a rank's request. The first four words state whether the rank joins a
/// new team, its color, its key, and which team slots are free on it. One more word for each slot
/// contains the last epoch that the rank has used in that slot.
const WORDS: usize = 4 + MAX_TEAMS;

/// The request of one rank in a split, encoded in [`WORDS`] words.
struct Request<'a> {
    words: &'a [u64],
}

impl Request<'_> {
    fn color(&self) -> Option<u64> {
        (self.words[0] == 1).then_some(self.words[1])
    }
    fn key(&self) -> i64 {
        self.words[2] as i64
    }
    fn free_slots(&self) -> u64 {
        self.words[3]
    }
    fn last_epoch(&self, slot: usize) -> u32 {
        self.words[4 + slot] as u32
    }
}

impl Shared {
    /// Gathers `words` from all ranks of the team with an all-gather, and returns the words of all
    /// ranks in rank order. `purpose` names the call of the program that needs the words, such as a
    /// split. `detail` encodes the parameters of that call. Returns an error if the ranks pass
    /// different values of `purpose` or `detail`, or different numbers of words.
    pub(crate) fn gather_words(
        &self,
        team: TeamRef<'_>,
        purpose: Purpose,
        detail: u64,
        words: &[u64],
    ) -> Result<Vec<u64>, Error> {
        let mut all = vec![0u64; words.len() * team.size()];
        let op = Collective {
            kind: CollectiveKind::AllGather,
            team: team.id,
            dtype: DType::U64,
            op: ReduceOp::Sum,
            scalar: 0,
            root: Rank::new(0),
            count: words.len(),
            // The buffer is only read, by `Run::pack`.
            send: Some(Place::Private(words.as_ptr().cast_mut().cast())),
            recv: Some(Place::Private(all.as_mut_ptr().cast())),
            counts: None,
            special: None,
        };
        let mut task = CollectiveTask::start_internal(team, Cow::Borrowed(&op), purpose, detail);
        task.drive(self, Limit::Deadline(self.peers.deadline)).map_err(Stop::into_error)?;
        Ok(all)
    }

    /// Waits until all ranks of the team have called this function. `purpose` names the call of the
    /// program that needs this synchronization, such as a split. `detail` encodes the parameters of
    /// that call. Returns an error if the ranks pass different values of `purpose` or `detail`.
    pub(crate) fn meet(&self, team: TeamRef<'_>, purpose: Purpose, detail: u64) -> Result<(), Error> {
        self.gather_words(team, purpose, detail, &[0]).map(|_| ())
    }

    /// Returns the team of all PEs.
    pub(crate) fn world(&self) -> TeamRef<'_> {
        TeamRef::Borrowed(self.teams.world())
    }

    pub(crate) fn team_split(
        &self,
        parent: TeamId,
        call: SplitCall,
        part: Option<SplitPart>,
    ) -> Result<Option<TeamRecord>, Error> {
        let parent = self.teams.get(call.name(), parent)?.into_arc();
        let gather = |claimed, words: &[u64]| {
            self.gather_words(TeamRef::Borrowed(&parent), Purpose::Split, split_detail(call, claimed), words)
        };
        for _ in 0..ATTEMPTS {
            let wanted = self.wanted_team(&parent, call, part, gather)?;
            // A split of another parent may have taken the slot on some member in the meantime. In
            // that case all ranks try again.
            let slot = wanted.as_ref().map(|team| team.slot);
            let claimed = slot.filter(|&slot| self.teams.claim(slot));
            if let (Some(team), Some(_)) = (&wanted, claimed) {
                self.reset(team);
            }
            let mine = u64::from(slot.is_none() || claimed.is_some());
            // No rank uses the words of the new team before all members have reset their words.
            let all_claimed = gather(true, &[mine]).map(|words| words.iter().all(|&word| word == 1));
            match (all_claimed, wanted) {
                (Ok(true), None) => return Ok(None),
                (Ok(true), Some(team)) => {
                    let members = team.members.iter().map(|&pe| Pe::new(pe as u32)).collect();
                    let record = TeamRecord { id: team.id, members };
                    self.teams.insert(team);
                    return Ok(Some(record));
                }
                (outcome, _) => {
                    claimed.into_iter().for_each(|slot| self.teams.unclaim(slot));
                    outcome?;
                }
            }
        }
        Err(no_slot(call))
    }

    /// Computes the new team of this rank from the requests of all ranks. Returns `None` if this
    /// rank joins no new team.
    ///
    /// # Errors
    /// A new team needs a slot that is free on all of its members. If one of the new teams has no
    /// such slot, this function returns an error on every rank of the parent team. All ranks return
    /// the same error, because all ranks see the same requests.
    fn wanted_team(
        &self,
        parent: &TeamState,
        call: SplitCall,
        part: Option<SplitPart>,
        gather: impl Fn(bool, &[u64]) -> Result<Vec<u64>, Error>,
    ) -> Result<Option<TeamState>, Error> {
        let mut mine = vec![u64::from(part.is_some())];
        let SplitPart { color, key } = part.unwrap_or(SplitPart { color: 0, key: 0 });
        let (free, last_epochs) = self.teams.free_slots();
        mine.extend([color, key as u64, free]);
        mine.extend(last_epochs.into_iter().map(u64::from));
        let all = gather(false, &mine)?;
        let requests: Vec<Request<'_>> = all.chunks_exact(WORDS).map(|words| Request { words }).collect();
        let mut slots = BTreeMap::new();
        for request in &requests {
            if let Some(color) = request.color() {
                *slots.entry(color).or_insert(u64::MAX) &= request.free_slots();
            }
        }
        if slots.values().any(|&free| free == 0) {
            return Err(no_slot(call));
        }
        Ok(part.map(|part| {
            let mut ranks: Vec<usize> = (0..requests.len()).filter(|&rank| requests[rank].color() == Some(part.color)).collect();
            ranks.sort_by_key(|&rank| (requests[rank].key(), rank));
            let slot = slots[&part.color].trailing_zeros() as usize;
            let epoch = ranks.iter().map(|&rank| requests[rank].last_epoch(slot)).max().unwrap_or(0);
            let members: Vec<usize> = ranks.iter().map(|&rank| parent.members[rank]).collect();
            let rank = members.iter().position(|&pe| pe == self.peers.me).expect("this rank is a member of its new team");
            TeamState::new(&self.peers.segments, slot, members, rank, epoch)
        }))
    }

    /// Resets the control words of this PE in the team slot of a new team.
    pub(crate) fn reset(&self, team: &TeamState) {
        let segments = &self.peers.segments;
        let words = segments.team_words(self.peers.me, team.slot);
        words.failure.word.store(0, Ordering::Relaxed);
        // Epochs continue from the highest epoch of any member. The epoch count wraps after 2^32
        // operations, so no word of the previous team may look like a later epoch.
        words.entry.iter().for_each(Line::reset);
        words.progress.word.store(progress_before_next(team.last_issued()), Ordering::Relaxed);
        self.kernels.reset(team.slot);
        segments.reset_kernel_lines(self.peers.me, team.slot, team.size());
        for from in 0..team.size() {
            for index in 0..MAILBOX_SLOTS {
                let slot = segments.mail(self.peers.me, team.slot, from, index);
                slot.number.store(0, Ordering::Relaxed);
                slot.answer.word.store(0, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn team_destroy(&self, id: TeamId) -> Result<(), Error> {
        let team = self.teams.get("destroy", id)?.into_arc();
        self.wait_for_channels(&team)?;
        // After a mismatch the team stays usable. After any other failure the slot of the team is
        // not used again, because other PEs may still use its words.
        self.meet(TeamRef::Borrowed(&team), Purpose::Destroy, 0)?;
        self.teams.remove(&team);
        Ok(())
    }

    /// Waits until all earlier sends and receives of the team have ended on every stream.
    fn wait_for_channels(&self, team: &TeamState) -> Result<(), Error> {
        let all_ended = |rank: usize| team.channels[rank].send.is_idle() && team.channels[rank].receive.is_idle();
        let timeout = |waited| {
            let pending = (0..team.size()).filter(|&rank| !all_ended(rank));
            let missing = pending.map(|rank| Pe::new(team.members[rank] as u32)).collect();
            let late = Error::from(Timeout::new("destroy", team.name(), waited, missing));
            self.peers.record_outcome(late)
        };
        // A send or receive may run until this time after its own deadline.
        let limit = self.peers.deadline.saturating_add(COMPLETION_GRACE);
        let mut waiter = self.peers.waiter(Limit::Deadline(limit));
        let look = || (0..team.size()).all(all_ended).then_some(());
        look().map_or_else(|| waiter.until(look, |_| Ok(()), timeout), Ok).map_err(Stop::into_error)
    }
}
