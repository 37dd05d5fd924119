//! How teams are made and ended: all ranks of the parent tell each other what they want, and each works out the same answer.

use crate::collective::{Progress, Purpose};
use crate::layout::MAX_TEAMS;
use crate::phase::Step;
use crate::shared::Shared;
use crate::team::TeamState;
use crate::tuning::MAILBOX_SLOTS;
use crate::wait::Limit;
use peerweave_core::Error;
use peerweave_core::backend::{Collective, CollectiveKind, Place, SplitPart, TeamId, TeamRecord};
use peerweave_types::{DType, Pe, Rank, ReduceOp};
use std::sync::atomic::Ordering;

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
        let parent = self.teams.get(parent);
        let mut mine = vec![u64::from(part.is_some())];
        let SplitPart { color, key } = part.unwrap_or(SplitPart { color: 0, key: 0 });
        mine.extend([color, key as u64, self.teams.free_slots()]);
        mine.extend(self.teams.ended().into_iter().map(u64::from));
        let all = self.gather_words(&parent, Purpose::Split, 0, &mine)?;
        let wishes: Vec<Wish<'_>> = all.chunks_exact(WORDS).map(|words| Wish { words }).collect();

        let team = part.map(|part| {
            let mut ranks: Vec<usize> = (0..wishes.len()).filter(|&rank| wishes[rank].color() == Some(part.color)).collect();
            ranks.sort_by_key(|&rank| (wishes[rank].key(), rank));
            let free = ranks.iter().fold(u64::MAX, |free, &rank| free & wishes[rank].free_slots());
            let slot = free.trailing_zeros() as usize;
            (slot < MAX_TEAMS).then(|| {
                let epoch = ranks.iter().map(|&rank| wishes[rank].ended(slot)).max().unwrap_or(0);
                let members: Vec<usize> = ranks.iter().map(|&rank| parent.members[rank]).collect();
                let rank = members.iter().position(|&pe| pe == self.me).expect("this rank gave that color");
                TeamState::new(slot, members, rank, epoch)
            })
        });
        if let Some(Some(team)) = &team {
            self.reset(team);
        }
        // Nobody uses the new words before all have reset theirs.
        self.meet(&parent, Purpose::Split, 1)?;
        match team {
            None => Ok(None),
            Some(None) => Err(Error::OutOfMemory {
                call: "split",
                requested_bytes: 1,
                available_bytes: 0,
                what: "team slots that are free on all members",
            }),
            Some(Some(team)) => {
                let members = team.members.iter().map(|&pe| Pe::new(pe as u32)).collect();
                let record = TeamRecord { id: team.id, members };
                self.teams.insert(team);
                Ok(Some(record))
            }
        }
    }

    /// Empties the words that this PE owns in a slot.
    fn reset(&self, team: &TeamState) {
        self.segments.team_words(self.me, team.slot).broken.word.store(0, Ordering::Relaxed);
        for from in 0..team.size() {
            for index in 0..MAILBOX_SLOTS {
                let slot = self.segments.mail(self.me, team.slot, from, index);
                slot.sequence.store(0, Ordering::Relaxed);
                slot.taken.word.store(0, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn team_destroy(&self, id: TeamId) -> Result<(), Error> {
        let team = self.teams.get(id);
        let met = self.meet(&team, Purpose::Destroy, 0);
        if met.is_ok() {
            // A member may make another team in this slot as soon as it returns. So it waits until everybody has read everybody's entry; this second wait
            // looks at words that only grow, also in the next team.
            let step = Step { shared: self, team: &team, call: "destroy", epoch: team.last_issued() };
            step.sync(1).map_err(|failure| *failure)?;
        }
        self.teams.remove(id);
        met
    }
}
