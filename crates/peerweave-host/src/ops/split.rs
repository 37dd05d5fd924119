//! How teams are made and ended: all ranks of the parent tell each other what they want, and each works out the same answer.

use crate::memory::layout::{MAILBOX_SLOTS, MAX_TEAMS};
use crate::memory::line::Line;
use crate::ops::collective::{Progress, Purpose, failed};
use crate::ops::shared::Shared;
use crate::sync::step::Step;
use crate::sync::team::{Lane, TeamState};

use crate::sync::wait::{Expired, Limit};
use peerweave_core::backend::{Collective, CollectiveKind, Place, SplitPart, TeamId, TeamRecord};
use peerweave_core::{Error, Timeout};
use peerweave_types::{DType, Pe, Rank, ReduceOp};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// How often a split is tried whose slots other splits take at the same time.
const ATTEMPTS: usize = 64;

fn no_slot() -> Error {
    Error::OutOfMemory { call: "split", requested_bytes: 1, available_bytes: 0, what: "team slots that are free on all members" }
}

/// What a rank says: whether it takes part, color, key, free slots, and what its slots' last teams ended with.
const WORDS: usize = 4 + MAX_TEAMS;

struct Wish<'a> {
    words: &'a [u64],
}

impl Wish<'_> {
    fn color(&self) -> Option<u64> {
        (self.words[0] == 1).then_some(self.words[1])
    }
    fn key(&self) -> i64 {
        self.words[2] as i64
    }
    fn free_slots(&self) -> u64 {
        self.words[3]
    }
    fn ended(&self, slot: usize) -> u32 {
        self.words[4 + slot] as u32
    }
}

impl Shared {
    /// A collective of the backend itself over words of each rank; returns the words of all.
    pub(crate) fn gather_words(&self, team: &TeamState, purpose: Purpose, detail: u64, words: &[u64]) -> Result<Vec<u64>, Error> {
        let mut all = vec![0u64; words.len() * team.size()];
        let op = Collective {
            kind: CollectiveKind::AllGather,
            team: team.id,
            dtype: DType::U64,
            op: ReduceOp::Sum,
            scalar: 0,
            root: Rank::new(0),
            count: words.len(),
            // Read only: see `Run::pack`.
            send: Some(Place::Private(words.as_ptr().cast_mut().cast())),
            recv: Some(Place::Private(all.as_mut_ptr().cast())),
            counts: None,
        };
        let mut progress = Progress::begin_for(team, purpose, detail);
        progress.drive(self, team, &op, Limit::Deadline(self.deadline)).map_err(|failure| *failure)?;
        Ok(all)
    }

    /// All ranks meet.
    pub(crate) fn meet(&self, team: &TeamState, purpose: Purpose, detail: u64) -> Result<(), Error> {
        self.gather_words(team, purpose, detail, &[0]).map(|_| ())
    }

    pub(crate) fn team_split(&self, parent: TeamId, part: Option<SplitPart>) -> Result<Option<TeamRecord>, Error> {
        let parent = self.teams.get("split", parent)?;
        for _ in 0..ATTEMPTS {
            let wanted = self.wanted_team(&parent, part)?;
            // Another split, of another parent, may have taken the slot on some member since that said it was free: then all try again.
            let slot = wanted.as_ref().map(|team| team.slot);
            let claimed = slot.filter(|&slot| self.teams.claim(slot));
            if let (Some(team), Some(_)) = (&wanted, claimed) {
                self.reset(team);
            }
            let mine = u64::from(slot.is_none() || claimed.is_some());
            // Nobody uses the new words before all have emptied theirs.
            let all_claimed =
                self.gather_words(&parent, Purpose::Split, 1, &[mine]).map(|words| words.iter().all(|&word| word == 1));
            match (all_claimed, wanted) {
                (Ok(true), None) => return Ok(None),
                (Ok(true), Some(team)) => {
                    let members = team.members.iter().map(|&pe| Pe::new(pe as u32)).collect();
                    let record = TeamRecord { id: team.id, members };
                    self.teams.insert(team);
                    return Ok(Some(record));
                }
                (outcome, _) => {
                    claimed.into_iter().for_each(|slot| self.teams.disclaim(slot));
                    outcome?;
                }
            }
        }
        Err(no_slot())
    }

    /// The team that this rank will be in, by what all ranks say. An error, on every rank of the parent, where any of the teams has no slot that
    /// is free on all its members: what all ranks say is the same for all, so all find the same.
    fn wanted_team(&self, parent: &TeamState, part: Option<SplitPart>) -> Result<Option<TeamState>, Error> {
        let mut mine = vec![u64::from(part.is_some())];
        let SplitPart { color, key } = part.unwrap_or(SplitPart { color: 0, key: 0 });
        let (free, ended) = self.teams.free_slots();
        mine.extend([color, key as u64, free]);
        mine.extend(ended.into_iter().map(u64::from));
        let all = self.gather_words(parent, Purpose::Split, 0, &mine)?;
        let wishes: Vec<Wish<'_>> = all.chunks_exact(WORDS).map(|words| Wish { words }).collect();
        let mut slots = BTreeMap::new();
        for wish in &wishes {
            if let Some(color) = wish.color() {
                *slots.entry(color).or_insert(u64::MAX) &= wish.free_slots();
            }
        }
        if slots.values().any(|&free| free == 0) {
            return Err(no_slot());
        }
        Ok(part.map(|part| {
            let mut ranks: Vec<usize> = (0..wishes.len()).filter(|&rank| wishes[rank].color() == Some(part.color)).collect();
            ranks.sort_by_key(|&rank| (wishes[rank].key(), rank));
            let slot = slots[&part.color].trailing_zeros() as usize;
            let epoch = ranks.iter().map(|&rank| wishes[rank].ended(slot)).max().unwrap_or(0);
            let members: Vec<usize> = ranks.iter().map(|&rank| parent.members[rank]).collect();
            let rank = members.iter().position(|&pe| pe == self.me).expect("this rank gave that color");
            TeamState::new(slot, members, rank, epoch)
        }))
    }

    /// Empties the words that this PE owns in a slot.
    fn reset(&self, team: &TeamState) {
        let words = self.segments.team_words(self.me, team.slot);
        words.broken.word.store(0, Ordering::Relaxed);
        // Epochs go on from the largest that any member has seen here, but after 2^32 operations the largest may be the older one: nothing of before may
        // look like something to come.
        words.entry.iter().for_each(Line::reset);
        words.phase.word.store(u64::from(team.last_issued()) << 32 | 0xffff_ff00, Ordering::Relaxed);
        self.kernels.reset(team.slot);
        self.segments.reset_kernel_lines(self.me, team.slot, team.size());
        for from in 0..team.size() {
            for index in 0..MAILBOX_SLOTS {
                let slot = self.segments.mail(self.me, team.slot, from, index);
                slot.sequence.store(0, Ordering::Relaxed);
                slot.taken.word.store(0, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn team_destroy(&self, id: TeamId) -> Result<(), Error> {
        let team = self.teams.get("destroy", id)?;
        self.wait_for_lanes(&team)?;
        // Where this fails the team stays as it is: after a mismatch it works on, otherwise its slot is not used again, since others may still use its
        // words.
        self.meet(&team, Purpose::Destroy, 0)?;
        // A member may make another team in this slot as soon as it returns. So it waits until everybody has read everybody's entry; this second wait
        // looks at words that only grow, also in the next team.
        let step = Step { shared: self, team: &team, call: "destroy", epoch: team.last_issued() };
        // A failure here is like one in a collective: those that wait for this PE learn whom it blames.
        step.sync(1).map_err(|failure| {
            failed(&step, &failure);
            *failure
        })?;
        self.teams.remove(&team);
        Ok(())
    }

    /// Waits until sends and receives of the team that were issued before are over, on whatever stream.
    fn wait_for_lanes(&self, team: &TeamState) -> Result<(), Error> {
        let mut waiter = self.waiter(Limit::Deadline(self.deadline));
        let over = |lane: &Lane| lane.turn.load(Ordering::Acquire) == lane.issued.load(Ordering::Acquire);
        while !team.lanes.iter().all(|lanes| over(&lanes.send) && over(&lanes.receive)) {
            if let Err(Expired::Deadline(waited)) = waiter.pause(|| Ok(())) {
                let open = team.lanes.iter().zip(&team.members).filter(|(lanes, _)| !over(&lanes.send) || !over(&lanes.receive));
                let missing = open.map(|(_, &pe)| Pe::new(pe as u32)).collect();
                let late = Error::Timeout(Box::new(Timeout { call: "destroy", team: team.name(), waited, missing }));
                return self.noted(Err(late));
            }
        }
        Ok(())
    }
}
